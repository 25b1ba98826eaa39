"""The contract of methods: their names, options and plans; what is refused; the toy in the docstring."""

import doctest
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstrata.datasets import DatasetInfo
from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment import Experiment, ModelSettings, TrainingSettings
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import (
    NAMES,
    Answers,
    Candidate,
    Facts,
    Method,
    Moment,
    Plan,
    Question,
    base,
    method_of,
    method_settings,
)
from fedstrata.models import Model, build_model
from tests.support.methods import method_with

IID = """
name: plain
partition: {kind: iid, devices: 4, examples_per_device: 20}
training: {lps_rounds_per_global_round: 1}"""
# what a method cannot do without where the partition has no groups, and what only the oracle needs
NEEDED: dict[str, dict[str, Any]] = {"random": {"clusters": 2}, "scores": {"reading": "columns", "beta": "equal"}}
ONE_ROUND = TrainingSettings(lps_rounds_per_global_round=1)


def small_model() -> Model:
    return build_model(ModelSettings(hidden=(3,)), DatasetInfo(input_shape=(4,), num_classes=2))


def candidates(count: int, tasks: str = "") -> list[Candidate]:
    """Devices 0, 1, …; `tasks` gives the true task of each as a letter."""
    return [
        Candidate(device_index=index, num_examples=10, true_task=tasks[index] if tasks else None)
        for index in range(count)
    ]


# --- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_named_method_is_made_with_options_of_its_own(name: str) -> None:
    made = method_of(
        method_settings({"name": name, **NEEDED.get(name, {})}),
        Facts(
            device_count=4,
            num_classes=2,
            true_groups=2,
            public_examples=100,
            training=ONE_ROUND,
            make_model=small_model,
        ),
    )
    assert made.options.name == name
    assert type(made.options) is type(made).Options
    asked = [question.name for question in made.questions()]
    assert len(set(asked)) == len(asked)


def test_a_name_alone_is_a_method_and_no_name_is_the_default() -> None:
    assert method_settings("fedavg") == method_settings({"name": "fedavg"})
    assert method_settings(None) == method_settings({}) == method_settings("one_shot")


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
    assert vars(made) == before == {"options": settings, "facts": facts}


# --- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": "nope"}, "method.name: no method is called 'nope'; choose one_shot, random, oracle, fedavg, local,"),
        (7, "method: must be a name, or a mapping with the name and its options, not 7"),
        ({"name": "fedprox", "nu": 1}, "method.nu: method fedprox has no such option; its options are: mu"),
        ({"name": "oracle", "clusters": 2}, "method.clusters: method oracle has no such option; its options are: none"),
        ({"name": "fedprox", "mu": -1}, "method.mu: must be at least 0, not -1"),
        ({"name": "fedprox", "mu": float("inf")}, "method.mu: must be a finite number, not inf"),
        ({"name": "fedprox", "mu": "much"}, "method.mu: must be a number"),
        ({"name": "ditto", "pull": -0.1}, "method.pull: must be at least 0, not -0.1"),
        ({"name": "ditto", "personal_epochs": 0}, "method.personal_epochs: must be at least 1"),
        (
            {"name": "one_shot", "clusters": 0},
            "method.clusters: must be 'auto' or at least 1, not 0",
        ),
        ({"name": "one_shot", "clusters": "few"}, "method.clusters: must be 'auto' or an integer"),
        ({"name": "one_shot", "eigenvectors": 0}, "method.eigenvectors: must be at least 1"),
        ({"name": "one_shot", "features": "phi"}, "method.features: no feature map is called 'phi'; choose raw"),
        ({"name": "one_shot", "features": "a:b"}, "method: features a:b needs feature_dim"),
        (
            {"name": "pacfl", "angle": "widest"},
            "method.angle: must be 'principal', 'smallest' or 'sum', not 'widest'",
        ),
        ({"name": "pacfl", "vectors": 0}, "method.vectors: must be at least 1"),
        ({"name": "ifca", "clusters": "auto"}, "method.clusters: must be an integer"),
        ({"name": "feddyn", "alpha": 0}, "method.alpha: must be above 0, not 0"),
        ({"name": "cfl", "mean_ratio": 0}, "method.mean_ratio: must be above 0"),
        ({"name": "cfl", "mean_ratio": 1.5}, "method.mean_ratio: must be at most 1"),
        ({"name": "cfl", "sketch": 8}, "method.sketch: must be at least 16"),
        ({"name": "cfl", "linkage": "average"}, "method.linkage: must be 'complete' or 'single'"),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_one_line(section: object, message: str) -> None:
    with pytest.raises(ExperimentError) as raised:
        method_settings(section)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{name: one_shot, clusters: 5}", "method.clusters is 5, more than the 4 devices"),
        ("{name: one_shot, clusters: 4, exact_up_to: 3, landmarks: 3}", "more than method.landmarks, 3"),
        ("{name: pacfl, clusters: 5}", "method.clusters is 5, more than the 4 devices"),
        ("{name: ifca, clusters: 5}", "method.clusters is 5, more than the 4 devices"),
        (
            "{name: pacfl, angle: sum}",
            "method.angle sum compares vectors place by place, not label by label; set method.by_label: false",
        ),
        (
            "{name: random}",
            "method random needs a number in method.clusters, because the partition has no true clusters",
        ),
        ("{name: oracle}", "method oracle needs a partition with known true clusters"),
    ],
)
def test_options_that_do_not_go_with_the_experiment_are_refused_in_one_line(section: str, message: str) -> None:
    with pytest.raises(ExperimentError) as raised:
        parse_experiment(f"{IID}\nmethod: {section}")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


FEDDYN = IID.partition("\ntraining")[0] + "\nmethod: feddyn\ntraining: {lps_rounds_per_global_round: 1}"


@pytest.mark.parametrize("participation", ["1.0", "4", "9", "null"])
def test_a_share_of_one_or_as_many_as_there_are_is_everybody(participation: str) -> None:
    made = parse_experiment(FEDDYN, overrides=[f"training.participation={participation}"])
    assert made.method.name == "feddyn"


@pytest.mark.parametrize(
    "present",
    [
        ["clock=none", "schedule=[{at: 3s, leave: {devices: [1]}}]"],  # passed over
        ["newcomers={devices: [1], from_global_round: 6}"],  # it only uses the model
    ],
)
def test_who_takes_part_in_no_round_or_in_all_is_nobody_that_is_missing(present: list[str]) -> None:
    parse_experiment(FEDDYN, overrides=["training.global_rounds=5", *present])


def experiment(section: str) -> Experiment:
    return parse_experiment(f"{IID}\nmethod: {section}")


def test_options_are_part_of_what_tells_runs_apart() -> None:
    weak, strong = experiment("{name: fedprox, mu: 0.1}"), experiment("{name: fedprox, mu: 0.2}")
    assert weak.run_id != strong.run_id
    assert weak.run_id == experiment("{name: fedprox, mu: 0.1}").run_id
    assert "mu: 0.1" in weak.to_yaml()


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


# --- own methods --------------------------------------------------------------------------------------------


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, whose module is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_method", None)


OWN = """
from fedstrata.methods import Method, MethodSettings

class Own(Method):
    class Options(MethodSettings):
        many: int = 2
"""


def test_an_own_method_has_options_of_its_own_and_is_told_of_the_run(workdir: Path) -> None:
    (workdir / "own_method.py").write_text(OWN)
    found = experiment("{name: 'own_method:Own', many: 3}")
    made = method_of(found.method, Facts(device_count=7))
    assert made.options.many == 3
    assert made.facts.device_count == 7
    assert found.run_id != experiment("{name: 'own_method:Own', many: 4}").run_id


def test_an_own_methods_options_are_as_closed_as_any(workdir: Path) -> None:
    (workdir / "own_method.py").write_text(OWN)
    with pytest.raises(
        ExperimentError, match=r"method\.few: method own_method:Own has no such option; its options are: many"
    ):
        method_settings({"name": "own_method:Own", "few": 3})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("Own = 3", "own_method.py): it is a int, not a function"),
        ("def Own(settings):\n    return 1", "must be a subclass of fedstrata.methods.Method, not <function Own"),
        ("class Own:\n    pass", "must be a subclass of fedstrata.methods.Method, not <class 'own_method.Own'>"),
        (
            "from fedstrata.methods import Method\nclass Own(Method):\n    class Options:\n        pass",
            "Options must be a subclass of fedstrata.methods.MethodSettings",
        ),
        (
            "from fedstrata.methods import Method\nclass Own(Method):\n    def check(self):\n        return 1 / 0",
            "method own_method:Own failed in check: ZeroDivisionError",
        ),
        (
            "from fedstrata.methods import Method\nclass Own(Method):\n    def __init_subclass__(cls, key): pass",
            "method own_method:Own failed with TypeError: ",
        ),
    ],
)
def test_an_own_method_that_is_none_is_refused_in_one_line(workdir: Path, body: str, message: str) -> None:
    (workdir / "own_method.py").write_text(body)
    with pytest.raises(PluginError) as raised:
        method_of(method_settings({"name": "own_method:Own"}), Facts(device_count=2))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


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
