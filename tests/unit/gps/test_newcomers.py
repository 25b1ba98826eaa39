"""Newcomers: who they are, what is refused, whom the GPS waits for, and where each method places them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment.newcomers import drawn
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import NAMES, Answers, Arrays, Candidate, Moment, Plan
from fedstrata.methods.adaptive import PRETRAINED, Adaptive
from fedstrata.methods.base import places_late
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.methods.oracle import Oracle
from fedstrata.methods.pacfl import SUBSPACE, Pacfl
from fedstrata.methods.random_clusters import RandomClusters
from fedstrata.methods.registry import method_class
from gps.journal.answers import BEFORE
from gps.plans.bundles import placed
from tests.support.gps_parts import IDS, GpsParts
from tests.support.methods import candidates, made

TEXT = """
name: ten
partition:
  kind: tasks
  tasks:
    - {name: a, labels: [0, 1], devices: 6, examples_per_device: 10}
    - {name: b, labels: [2, 3], devices: 4, examples_per_device: 10}
method: {name: one_shot, clusters: 2}
training: {global_rounds: 4}
"""
LATE = ("newcomers={devices: [2, 4], from_global_round: 2}", "training.global_rounds=4")


# --- who they are -------------------------------------------------------------------------------------------


@given(groups=st.lists(st.sampled_from("abc"), min_size=1, max_size=30), count=st.integers(0, 30), seed=st.integers(0))
def test_as_many_are_drawn_as_asked_for_and_every_group_keeps_a_founder(
    groups: list[str], count: int, seed: int
) -> None:
    newcomers = drawn(groups, count, seed)
    founders = {group for index, group in enumerate(groups) if index not in newcomers}
    assert founders == set(groups)
    assert len(newcomers) == min(count, len(groups) - len(set(groups)))
    assert newcomers == drawn(groups, count, seed)


def test_a_share_is_drawn_by_the_seed() -> None:
    shares = [
        parse_experiment(TEXT, overrides=["newcomers={share: 0.3, from_global_round: 2}"], seed=seed) for seed in (0, 1)
    ]
    assert [len(experiment.newcomer_indexes) for experiment in shares] == [3, 3]
    assert shares[0].newcomer_indexes != shares[1].newcomer_indexes


def test_a_run_without_newcomers_keeps_its_id() -> None:
    plain, spoken = parse_experiment(TEXT), parse_experiment(TEXT, overrides=["newcomers=null"])
    some = parse_experiment(TEXT, overrides=["newcomers={share: 0.3, from_global_round: 2}"])
    assert plain.digest == spoken.digest != some.digest
    assert some.model_copy(update={"newcomers": None}).newcomer_indexes == frozenset()


@pytest.mark.parametrize(
    ("newcomers", "others", "reason"),
    [
        ("{from_global_round: 2}", (), r"give exactly one of share \(of all devices\) and devices \(their indexes\)"),
        ("{share: 0.2, devices: [1], from_global_round: 2}", (), "give exactly one of share"),
        ("{share: 0, from_global_round: 2}", (), "newcomers.share"),
        ("{devices: [10], from_global_round: 2}", (), "there is no device 10; the partition has devices 0 to 9"),
        (
            "{share: 0.2, from_global_round: 6}",
            (),
            "from_global_round is 6, and training.global_rounds is 4; set at most 5",
        ),
        (
            "{share: 0.01, from_global_round: 2}",
            (),
            "newcomers.share 0.01 of 10 devices selects no device .*; raise newcomers.share",
        ),
        ("{devices: [0-8], from_global_round: 2}", (), "1 devices are not newcomers, too few for 2 clusters"),
        ("{share: 0.2, from_global_round: 1}", (), "newcomers.from_global_round: .* 2, not 1"),
        (
            "{devices: [8, 9], from_global_round: 2}",
            ("topology={lps: 2, devices: [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9]]}",),
            "all devices of lps-1 are newcomers; leave one out of newcomers",
        ),
        (
            "{devices: [0-5], from_global_round: 2}",
            ("method={name: one_shot, clusters: 2, exact_up_to: 4, landmarks: 2}",),
            ". landmarks are not newcomers, too few for 2 clusters; raise method.landmarks",
        ),
        (
            "{share: 0.7, from_global_round: 2}",
            ("secure_aggregation={min_devices: 5}",),
            "a round of one of the 2 clusters asks at most 1 devices",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(newcomers: str, others: Sequence[str], reason: str) -> None:
    rounds = "training.lps_rounds_per_global_round=1"
    with pytest.raises(ExperimentError, match=reason) as raised:
        parse_experiment(TEXT, overrides=[f"newcomers={newcomers}", rounds, *others])
    assert "\n" not in str(raised.value)


# --- at the GPS ---------------------------------------------------------------------------------------------


async def grouped(tmp_path: Path, *overrides: str) -> GpsParts:
    """Device 4 has come first of all, then the founders; 2 is still away."""
    gps = GpsParts(tmp_path, *LATE, *overrides)
    gps.enrol(4, 0, 1, 3)
    founders = [0, 1, 3]
    await gps.profiles(*founders)
    await gps.enrolment.gather_devices()
    for index in founders:
        await gps.relate(index, {other: 0.5 for other in founders if other != index})
    await gps.enrolment.gather_answers()
    return gps


async def test_the_plan_is_made_of_the_founders_and_waits_for_nobody_else(tmp_path: Path) -> None:
    gps = await grouped(tmp_path)
    assert [device.device_id for device in gps.enrolment.candidates()] == [IDS[0], IDS[1], IDS[3]]
    assert gps.roster.absent_founders() == []
    assert gps.roster.unplaced_newcomers() == [IDS[2], IDS[4]]
    assert gps.journal.exclusions() == []


async def test_who_is_late_is_known_of_by_a_gps_that_comes_back(tmp_path: Path) -> None:
    gps = await grouped(tmp_path)
    gps.places.make(BEFORE, Plan(clusters=((0, 1), (3,)), rule="2 as given"))
    gps.places.place(gps.roster.devices[4], 1, gps.roster.devices[4].from_global_round)
    gps.restart()
    assert gps.roster.devices[4].is_late
    assert gps.roster.devices[4].from_global_round == 1
    assert gps.roster.unplaced_newcomers() == [IDS[2]]
    assert [gps.places.examples(global_round) for global_round in (0, 1)] == [
        {"lps-0": 20, "lps-1": 20},
        {"lps-0": 20, "lps-1": 40},
    ]


async def test_newcomers_that_stay_away_are_left_out_at_the_deadline(tmp_path: Path) -> None:
    gps = await grouped(tmp_path, "deadlines.enrolment.deadline_s=0.001", "deadlines.enrolment.quorum_ratio=1")
    gps.place = lambda device: setattr(device, "cluster", 0)
    gps.questions.publish_sponsors([[0], [3]])
    await gps.relate(4, {0: 0.1, 3: 0.9})
    await gps.enrolment.gather_newcomers()
    assert gps.journal.exclusions() == [(IDS[2], "enrolment", "a newcomer that had not joined by the deadline")]
    assert not gps.roster.awaits_newcomers
    gps.restart()
    assert gps.roster.unplaced_newcomers() == [IDS[4]]  # where this test has placed it; nobody waits for 2 again


async def test_a_method_that_asks_nothing_places_a_device_as_it_enrols(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path, *LATE, "method=fedavg")
    seen: list[str] = []
    gps.place = lambda device: seen.append(device.device_id)
    gps.enrol(0, 1, 3)
    gps.questions.publish_sponsors(())
    gps.enrol(4)
    assert seen == [IDS[4]]


# --- where they are placed ----------------------------------------------------------------------------------

PLAN = Plan(clusters=((0, 2), (1, 3)), rule="two")
NEW = Candidate(device_index=4, true_task="b")


def answers_to(question: str, array: str, values: dict[int, Any]) -> Answers:
    given: dict[int, Arrays] = {index: {array: np.array(each, np.float32)} for index, each in values.items()}
    return Answers(candidates(4, "abab"), {question: given})


def test_oracle_places_by_the_true_task() -> None:
    method, answers = made(Oracle, devices=5, groups=2), Answers(candidates(4, "abab"))
    assert placed(method, NEW, answers, PLAN) == 1
    assert placed(method, Candidate(device_index=4, true_task="c"), answers, PLAN) == 0


def test_random_places_by_the_seed_each_cluster_by_its_size() -> None:
    plan, answers = Plan(clusters=((0,), (1, 2, 3)), rule="two"), Answers(candidates(4))
    found = [made(RandomClusters, devices=5, clusters=2, seed=seed).place(NEW, answers, plan) for seed in range(400)]
    assert 250 < sum(found) < 350  # three of four


def test_pacfl_places_at_the_smallest_mean_angle() -> None:
    method = made(Pacfl, devices=5, clusters=2, by_label=False, vectors=1)
    plane = {0: [[1, 0]], 2: [[1, 0]], 1: [[0, 1]], 3: [[0, 1]], 4: [[0.6, 0.8]]}  # 53 degrees to one, 37 to the other
    assert placed(method, NEW, answers_to(SUBSPACE, "vectors", plane), PLAN) == 1


def test_adaptive_places_at_the_highest_mean_cosine() -> None:
    layers = {0: [1, 0], 2: [1, 0], 1: [-1, 0], 3: [0, 1], 4: [0.8, 0.6]}  # cosines .8 and .8; -.8 and .6
    assert placed(made(Adaptive, devices=5), NEW, answers_to(PRETRAINED, "layers", layers), PLAN) == 0


@pytest.mark.parametrize("said", [np.int64(1), 1.0, None, 2, -1])
def test_a_place_is_a_whole_number_of_a_cluster(said: Any) -> None:
    class Places(Oracle):
        def place(self, late: Candidate, answers: Answers, plan: Plan) -> Any:
            return said

    method, answers = made(Places, devices=5, groups=2), Answers(candidates(4, "abab"))
    if isinstance(said, np.int64):
        assert type(placed(method, NEW, answers, PLAN)) is int
        return
    with pytest.raises(PluginError, match="place"):
        placed(method, NEW, answers, PLAN)


def test_where_there_is_one_cluster_everybody_goes_there() -> None:
    method = made(FedAvg, devices=5)
    plan = method.plan(Moment.BEFORE, Answers(candidates(4)), None)
    assert placed(method, NEW, Answers(candidates(4)), plan) == 0


def test_who_makes_plans_of_its_own_says_where_late_devices_go_or_takes_none() -> None:
    class Regrouped(Oracle):
        def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
            return super().plan(moment, answers, before)

    assert not places_late(Regrouped)
    assert {name for name in NAMES if places_late(method_class(name))} == {
        "adaptive", "apfl", "ditto", "fedadagrad", "fedadam", "fedala", "fedavg", "fedavg_ft", "fedavgm", "fedbabu",
        "fedbn", "fedclust", "feddc", "feddyn", "fednova", "fedper", "fedproto", "fedprox", "fedrep", "fedrod",
        "fedyogi", "flux", "label_means", "lg_fedavg", "local", "moon", "one_shot", "oracle", "pacfl",
        "perfedavg", "pfedme", "random", "scaffold",
    }  # fmt: skip
