"""The plans: clusters, where devices hang, who stands for a cluster; planning again, and going back."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstrata.errors import PluginError
from fedstrata.methods import Answers, Candidate, Channel, Facts, Method, Plan, Reach, all_layers
from fedstrata.methods.one_shot import OneShot
from fedstrata.models import Model
from fedstrata.streams.streams import WEIGHT_GRID, shares_of
from gps.journal.answers import BEFORE
from gps.plans.places import Places
from gps.plans.plan import cluster_of
from tests.support.gps_parts import IDS, GpsParts

PLAN = Plan(clusters=((0, 2), (1, 3, 4)), rule="2 as given")
# 0 and 2 are alike; of 1, 3 and 4 device 3 is most like the others
RELEVANCE = np.array([
    [1.0, 0.1, 0.8, 0.1, 0.1],
    [0.1, 1.0, 0.1, 0.9, 0.5],
    [0.8, 0.1, 1.0, 0.1, 0.1],
    [0.1, 0.9, 0.1, 1.0, 0.7],
    [0.1, 0.5, 0.1, 0.7, 1.0],
])  # fmt: skip
RELATED = replace(PLAN, affinity=RELEVANCE, related=(0, 1, 2, 3, 4))
ASKING = ("method={name: ifca, clusters: 2}", "training.lps_rounds_per_global_round=1")


class Mixing(Method):
    """Every cluster's model is a mean over all devices, with weights from the plan."""

    mixes = True

    def channels(self, model: Model) -> tuple[Channel, ...]:
        return all_layers(model, Reach.CLUSTER)


def enrolled(folder: Path, *overrides: str, devices: Sequence[int] = range(5)) -> GpsParts:
    gps = GpsParts(folder, *overrides)
    gps.enrol(*devices)
    return gps


@pytest.fixture
def gps(tmp_path: Path) -> GpsParts:
    return enrolled(tmp_path)


@pytest.fixture
def places(gps: GpsParts) -> Places:
    gps.places.make(BEFORE, PLAN)
    return gps.places


def same(one: Plan, other: Plan) -> bool:
    """Whether two plans are the same to the bit."""
    alike = replace(one, affinity=None) == replace(other, affinity=None)
    if one.affinity is None or other.affinity is None:
        return alike and one.affinity is other.affinity
    return alike and np.array_equal(one.affinity, other.affinity)


# --- clusters -----------------------------------------------------------------------------------------------


def test_a_cluster_is_called_after_its_lps(places: Places) -> None:
    assert places.clusters == {"lps-0": [IDS[0], IDS[2]], "lps-1": [IDS[1], IDS[3], IDS[4]]}
    assert places.homes == places.clusters
    assert places.examples(0) == {"lps-0": 20, "lps-1": 50}


def test_a_restarted_gps_finds_its_plan(gps: GpsParts) -> None:
    gps.places.make(BEFORE, RELATED)
    before, clusters, version = gps.plans, gps.places.clusters, gps.places.version
    gps.restart()
    found = gps.plans
    assert (found.is_made, found.newest.rule, gps.places.clusters) == (True, "2 as given", clusters)
    assert gps.places.version == version == 1
    assert same(found.newest, before.newest)
    assert same(found.newest, RELATED)


@pytest.mark.parametrize(
    ("overrides", "known"),
    [
        (["method.clusters=3"], 3),
        (["method.clusters=auto"], 0),
        (["method=oracle"], 2),
        (["method=random"], 2),
        (["method=random", "method.clusters=4"], 4),
        (["method=fedavg"], 1),
    ],
)
def test_lpss_are_asked_for_as_soon_as_their_number_is_known(tmp_path: Path, overrides: list[str], known: int) -> None:
    gps = enrolled(tmp_path, *overrides)
    assert gps.places.lps_known == known
    gps.places.make(BEFORE, PLAN)
    assert gps.places.lps_known == 2


@pytest.mark.parametrize(
    ("overrides", "known"),
    [(["method.clusters=auto", "topology={lps: 3}"], 3), (ASKING, 1), ([*ASKING, "topology={lps: 2}"], 2)],
)
def test_where_clusters_span_lpss_their_number_is_the_topologys_alone(
    tmp_path: Path, overrides: list[str], known: int
) -> None:
    gps = enrolled(tmp_path, *overrides)
    assert gps.places.lps_known == known
    gps.places.make(BEFORE, PLAN)
    assert gps.places.lps_known == known


def test_where_clusters_span_lpss_a_device_has_a_cluster_and_hangs_on_an_lps(tmp_path: Path) -> None:
    gps = enrolled(tmp_path, "topology={lps: 2, devices: [[0, 1], [2, 3, 4]]}")
    gps.places.make(BEFORE, PLAN)
    assert gps.places.clusters == {"cluster-0": [IDS[0], IDS[2]], "cluster-1": [IDS[1], IDS[3], IDS[4]]}
    assert gps.places.homes == {"lps-0": [IDS[0], IDS[1]], "lps-1": [IDS[2], IDS[3], IDS[4]]}
    assert gps.places.examples(0) == {"lps-0": 20, "lps-1": 50}
    assert [device.device_index for device in gps.places.members("lps-1")] == [2, 3, 4]


def test_devices_are_dealt_out_to_lpss_in_index_order_where_nothing_else_is_said(tmp_path: Path) -> None:
    gps = enrolled(tmp_path, "topology={lps: 2}")
    gps.places.make(BEFORE, PLAN)
    assert gps.places.homes == {"lps-0": [IDS[0], IDS[2], IDS[4]], "lps-1": [IDS[1], IDS[3]]}


def test_a_pod_has_all_the_clusters_of_its_devices(gps: GpsParts, places: Places) -> None:
    for index, pod_name in enumerate(["pod-0", "pod-0", "pod-1", "pod-1", ""]):
        gps.roster.devices[index].pod_name = pod_name
    assert places.pods() == {"pod-0": ["lps-0", "lps-1"], "pod-1": ["lps-0", "lps-1"]}
    gps.roster.devices[3].pod_name = "pod-2"
    assert places.pods() == {"pod-0": ["lps-0", "lps-1"], "pod-1": ["lps-0"], "pod-2": ["lps-1"]}


# --- what a plan holds ----------------------------------------------------------------------------------------


def test_a_plan_is_in_force_as_a_restarted_gps_will_read_it(gps: GpsParts) -> None:
    clusters = tuple(tuple(np.int64(index) for index in cluster) for cluster in PLAN.clusters)
    numbers: Any = (np.int64(0),)
    memory = {"seen": (1, 2), "by": {3: 0.5}}
    made = Plan(clusters=clusters, rule="own", memory=memory, parents=numbers, offers=((*numbers, 1), (1,)))
    gps.places.make(BEFORE, made)
    before = gps.plans.newest
    assert before.clusters == PLAN.clusters
    assert before.offers == ((0, 1), (1,))
    assert before.memory == {"seen": [1, 2], "by": {"3": 0.5}}
    gps.restart()
    assert same(gps.plans.newest, before)
    assert [gps.roster.devices[index].cluster for index in range(5)] == [0, 1, 0, 1, 1]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0,), (2, 3)])
def test_arrays_for_all_devices_keep_their_shape(
    gps: GpsParts, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gps.method, "tells", lambda: {"table": ("float64", shape)})
    gps.places.make(BEFORE, replace(PLAN, told={"table": np.ones(shape)}))
    np.testing.assert_array_equal(gps.plans.newest.told["table"], np.ones(shape), strict=True)
    assert gps.plans.told(gps.plans.newest) is not None


def test_where_devices_were_as_a_round_began_is_known_once_its_plan_is_made_and_after_a_restart(gps: GpsParts) -> None:
    gps.places.make(BEFORE, PLAN)
    moved = replace(PLAN, clusters=((0, 1, 2, 3, 4), ()))
    gps.places.make(0, moved)
    for _ in range(2):
        assert cluster_of(gps.plans.at_start(0)) == {0: 0, 1: 1, 2: 0, 3: 1, 4: 1}
        assert cluster_of(gps.plans.at_start(1)) == dict.fromkeys(range(5), 0)
        gps.restart()


def test_what_a_method_has_not_said_that_it_tells_is_its_fault(gps: GpsParts) -> None:
    with pytest.raises(PluginError, match="tells devices other arrays than it has declared"):
        gps.places.make(BEFORE, replace(PLAN, told={"batch": np.arange(3)}))
    assert not gps.plans.is_made


@pytest.mark.parametrize("memory", [{"x": object()}, {"x": float("nan")}, {"x": np.float32(1)}])
def test_a_memory_that_cannot_be_written_is_the_methods_fault_and_leaves_no_plan(
    gps: GpsParts, memory: dict[str, object]
) -> None:
    with pytest.raises(PluginError, match="a plan needs a memory of JSON values"):
        gps.places.make(BEFORE, replace(PLAN, memory=memory))
    assert not gps.plans.is_made
    gps.restart()
    assert not gps.plans.is_made


def test_a_devices_shares_are_whole_multiples_of_the_grid(gps: GpsParts) -> None:
    places = Places(gps.experiment, Mixing({}, Facts(device_count=5)), gps.roster, gps.journal)
    plans = places.plans
    mixed = {"model": ({0: 0.75, 1: 0.25}, {1: 1.0, 4: 1e-9})}
    places.make(BEFORE, replace(PLAN, weights=mixed))
    assert tuple(plans.newest.weights) == ("model",)
    assert shares_of(plans.newest, 0) == {"model": {0: 3 * WEIGHT_GRID // 4}}
    assert shares_of(plans.newest, 1) == {"model": {0: WEIGHT_GRID // 4, 1: WEIGHT_GRID}}
    assert shares_of(plans.newest, 4) == {"model": {}}  # less than half a step of the grid
    again = Places(gps.experiment, Mixing({}, Facts(device_count=5)), gps.roster, gps.journal)
    assert again.plans.newest.weights == mixed
    assert again.clusters == places.clusters == {"cluster-0": [IDS[0], IDS[2]], "cluster-1": [IDS[1], IDS[3], IDS[4]]}


# --- planning again ---------------------------------------------------------------------------------------------


@pytest.fixture
def asking(tmp_path: Path) -> GpsParts:
    """Plans made before training and in global rounds 0 and 1; device 0 changes over, then device 3."""
    gps = enrolled(tmp_path, *ASKING)
    gps.places.make(BEFORE, PLAN)
    gps.places.make(0, Plan(clusters=((2,), (0, 1, 3, 4)), rule="in round 0"))
    gps.places.make(1, Plan(clusters=((2, 3), (0, 1, 4)), rule="in round 1", parents=(1, 0)))
    return gps


def clusters_now(gps: GpsParts) -> list[int | None]:
    return [gps.roster.devices[index].cluster for index in range(5)]


def test_a_plan_of_a_round_holds_from_that_rounds_updates_on(asking: GpsParts) -> None:
    plans = asking.plans
    assert plans.first is not None
    assert [plans.first.rule, plans.newest.rule] == ["2 as given", "in round 1"]
    assert [plans.at_start(number).rule for number in range(3)] == ["2 as given", "in round 0", "in round 1"]
    assert [plans.at_end(number).rule for number in range(3)] == ["in round 0", "in round 1", "in round 1"]
    assert [plans.is_planned(number) for number in range(3)] == [True, True, False]
    assert (plans.planned_rounds, asking.places.version) == (2, 3)
    assert clusters_now(asking) == [1, 1, 0, 0, 1]


def test_devices_stay_on_their_lps_when_they_change_their_cluster(asking: GpsParts) -> None:
    assert asking.places.homes == {"lps-0": list(IDS)}
    assert len(asking.plans.newest.clusters) == 2


def test_all_plans_outlive_a_restart(asking: GpsParts) -> None:
    before = asking.plans
    asking.restart()
    after = asking.plans
    for number in range(4):
        assert same(after.at_start(number), before.at_start(number))
    assert (after.planned_rounds, asking.places.version) == (2, 3)
    assert clusters_now(asking) == [1, 1, 0, 0, 1]


def test_a_global_round_that_is_done_again_keeps_its_own_plan_and_forgets_later_ones(asking: GpsParts) -> None:
    asking.journal.answers.add_bundle("losses", 0, "lps-0", {0: b"kept"})
    asking.journal.answers.add_bundle("losses", 1, "lps-0", {0: b"forgotten"})
    asking.places.go_back_to(0)
    assert (asking.plans.newest.rule, asking.plans.planned_rounds) == ("in round 0", 1)
    assert clusters_now(asking) == [1, 1, 0, 1, 1]
    assert (asking.journal.answers.bundled(0), asking.journal.answers.bundled(1)) == ({"lps-0"}, set())
    assert asking.journal.answers.all("losses", 1) == {}
    asking.restart()
    assert asking.plans.newest.rule == "in round 0"
    assert clusters_now(asking) == [1, 1, 0, 1, 1]


def test_a_version_is_never_given_to_two_plans_whatever_is_taken_back_and_restarted(asking: GpsParts) -> None:
    seen = {asking.places.version}
    for _ in range(3):
        asking.places.go_back_to(0)
        asking.restart()
        assert asking.places.version > max(seen)
        seen.add(asking.places.version)
        asking.places.make(1, Plan(clusters=((0, 1, 2, 3, 4), ()), rule="again"))
        asking.restart()
        assert asking.places.version > max(seen)
        seen.add(asking.places.version)


def test_going_back_to_the_newest_plan_changes_nothing(asking: GpsParts) -> None:
    asking.places.go_back_to(1)
    assert (asking.plans.newest.rule, asking.places.version) == ("in round 1", 3)


# --- late devices -------------------------------------------------------------------------------------------


def method_of(gps: GpsParts) -> OneShot:
    assert isinstance(gps.method, OneShot)
    return gps.method


def test_a_cluster_is_represented_by_its_most_relevant_device(gps: GpsParts) -> None:
    # of the first 0 and 2 are equal, the lower index stands; of the second the means are 0.8, 0.867, 0.733
    assert method_of(gps).sponsors(RELATED) == ((0,), (3,))


def test_more_representatives_may_be_asked_for(tmp_path: Path) -> None:
    method = method_of(GpsParts(tmp_path, "method.representatives=2"))
    sponsors = method.sponsors(RELATED)
    assert sponsors == ((0, 2), (3, 1))
    row = {"devices": np.int64([0, 1, 2, 3]), "values": np.float64([0.2, 0.9, 0.4, 0.7])}  # means of 0.3 and 0.8
    late = Candidate(device_index=4)
    assert method.place(late, Answers([], {"relevance": {4: row}}), RELATED) == 1


def test_without_relevance_nobody_stands_for_a_cluster(gps: GpsParts) -> None:
    assert method_of(gps).sponsors(PLAN) == ()


def test_a_late_device_joins_without_moving_the_others(tmp_path: Path) -> None:
    gps = enrolled(tmp_path, devices=range(4))
    places = gps.places
    places.make(BEFORE, Plan(clusters=((0, 2), (1, 3)), rule="2 as given"))
    gps.enrol(4)
    version = places.version
    places.place(gps.roster.devices[4], 0, 3)
    assert places.version == version + 1
    assert gps.roster.devices[4].from_global_round == 3
    assert places.clusters == {"lps-0": [IDS[0], IDS[2], IDS[4]], "lps-1": [IDS[1], IDS[3]]}
    assert places.homes == places.clusters
    gps.restart()
    assert (gps.places.clusters, gps.roster.devices[4].from_global_round) == (places.clusters, 3)


def test_where_clusters_span_lpss_a_late_device_hangs_where_the_topology_says(tmp_path: Path) -> None:
    gps = enrolled(tmp_path, "topology={lps: 2, devices: [[0, 1], [2, 3, 4]]}", devices=range(4))
    gps.places.make(BEFORE, Plan(clusters=((0, 2), (1, 3)), rule="2 as given"))
    gps.enrol(4)
    gps.places.place(gps.roster.devices[4], 0, 3)
    assert gps.places.clusters["cluster-0"] == [IDS[0], IDS[2], IDS[4]]
    assert gps.places.homes["lps-1"] == [IDS[2], IDS[3], IDS[4]]


# --- moves of the schedule ------------------------------------------------------------------------------------


def test_a_device_that_an_lps_has_refused_is_not_moved_before_and_after_a_restart(
    gps: GpsParts, places: Places
) -> None:
    gps.journal.exclude(IDS[0], "training", "refused: an update of NaN")
    gps.journal.exclude(IDS[2], "round 1", "missed the deadline")
    assert places.move(1, {0: 1, 2: 1}) == [IDS[2]]
    gps.restart()
    assert gps.places.move(2, {0: 1, 2: 1}) == []
    assert gps.places.moves() == [(1, IDS[2], "lps-0", "lps-1")]
