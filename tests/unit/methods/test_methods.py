"""The contract of methods: no state, plans that cover all devices, the docstring's example, and the page of each."""

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstrata.datasets import DatasetInfo
from fedstrata.errors import PluginError
from fedstrata.experiment import ModelSettings, TrainingSettings
from fedstrata.methods import NAMES, Answers, Facts, Method, Moment, Plan, Question, base, method_of, method_settings
from fedstrata.models import Model, build_model
from tests.support.methods import candidates, method_with

# what a method cannot do without where the partition has no groups, and what only the oracle needs
NEEDED: dict[str, dict[str, Any]] = {"random": {"clusters": 2}, "scores": {"reading": "columns", "beta": "equal"}}
ONE_ROUND = TrainingSettings(lps_rounds_per_global_round=1)


def small_model() -> Model:
    return build_model(ModelSettings(hidden=(3,)), DatasetInfo(input_shape=(4,), num_classes=2))


# --- state --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NAMES if name != "oracle"])
def test_a_method_has_no_state_so_that_two_of_them_are_as_one(name: str) -> None:
    settings = method_settings({"name": name, **NEEDED.get(name, {})})
    facts = Facts(device_count=4, num_classes=2, public_examples=100, training=ONE_ROUND, make_model=small_model)
    made = method_of(settings, facts)
    before = dict(vars(made))
    made.questions()
    made.relays()
    if not made.questions():
        made.plan(Moment.BEFORE, Answers(candidates(4)), None)
    assert vars(made) == before == vars(method_of(settings, facts))
    assert {"options": settings, "facts": facts}.items() <= before.items()


# --- plans --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [((0,),), ((0, 1), (1,)), ((0, 1), ()), ((0, 1, 2),)])
def test_a_plan_that_is_no_partition_of_the_devices_is_refused(clusters: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(PluginError, match="must put every device into exactly one cluster"):
        Plan(clusters=clusters, rule="odd").check_covers(candidates(2))


def test_a_cluster_may_be_empty_where_devices_are_asked_every_round() -> None:
    Plan(clusters=((0, 1), ()), rule="odd").check_covers(candidates(2), may_be_empty=True)


def test_a_device_is_found_in_its_cluster() -> None:
    plan = Plan.ordered([[5, 3], [4, 1]], "two")
    assert plan.clusters == ((1, 4), (3, 5))
    assert [plan.cluster_of(index) for index in (1, 3, 4, 5)] == [0, 1, 0, 1]
    with pytest.raises(KeyError):
        plan.cluster_of(2)


def test_a_method_sees_devices_and_answers_in_the_order_of_their_indexes() -> None:
    given = {index: {"row": np.array([index])} for index in (2, 0, 1)}
    answers = Answers([candidates(3)[index] for index in (1, 2, 0)], {"asked": given})
    assert [device.device_index for device in answers.devices] == [0, 1, 2]
    assert list(answers.of("asked")) == [0, 1, 2]
    assert answers.of("another") == {}


def test_who_overrides_nothing_has_one_cluster_of_everybody() -> None:
    method = method_with(Method, {"name": "own"}, Facts(device_count=3))
    assert method.plan(Moment.BEFORE, Answers(candidates(3)[::-1]), None).clusters == ((0, 1, 2),)
    assert method.clusters_known == 1
    assert list(method.questions()) == []


# --- the contract ------------------------------------------------------------------------------------------


async def test_what_a_method_asks_and_does_not_answer_is_told_by_name() -> None:
    question = Question(name="age", moment=Moment.BEFORE, arrays={})
    method = method_with(Method, {"name": "own"}, Facts(device_count=1))
    with pytest.raises(PluginError, match="Method asks age, but does not implement answer"):
        await method.answer(question, None, {})  # type: ignore[arg-type]
    with pytest.raises(PluginError, match="Method relays age, but does not implement hear"):
        await method.hear(question, None, {})  # type: ignore[arg-type]


def test_the_example_in_the_docstring_of_the_contract_runs() -> None:
    found = doctest.testmod(base)
    assert found.attempted >= 3
    assert found.failed == 0


# --- the page on methods ------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[3] / "docs" / "methods.md").read_text(encoding="utf-8")
REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "methods"


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_a_section_that_leads_to_its_options(name: str) -> None:
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert f"(reference/methods/{name}.md)" in section
    assert f"| [`{name}`](#{name}) |" in PAGE
    options = (REFERENCE / f"{name}.md").read_text(encoding="utf-8")
    assert "\n## Options\n" in options
    assert "\n## What leaves a device\n" in options
