"""The plan: clusters, representatives, and where a late device goes."""

from pathlib import Path

import numpy as np
import pytest
from gps_parts import IDS, GpsParts

from fedstrata.methods import Grouping
from gps.plan import Plan

GROUPING = Grouping(clusters=((0, 2), (1, 3, 4)), rule="2 as given")
# 0 and 2 are alike; of 1, 3 and 4 device 3 is most like the others
RELEVANCE = np.array([
    [1.0, 0.1, 0.8, 0.1, 0.1],
    [0.1, 1.0, 0.1, 0.9, 0.5],
    [0.8, 0.1, 1.0, 0.1, 0.1],
    [0.1, 0.9, 0.1, 1.0, 0.7],
    [0.1, 0.5, 0.1, 0.7, 1.0],
])  # fmt: skip


@pytest.fixture
def gps(tmp_path: Path) -> GpsParts:
    parts = GpsParts(tmp_path)
    parts.enrol(*range(5))
    return parts


def plan_of(gps: GpsParts) -> Plan:
    return Plan(gps.experiment, gps.roster, gps.journal)


@pytest.fixture
def plan(gps: GpsParts) -> Plan:
    made = plan_of(gps)
    made.make(GROUPING)
    return made


# --- clusters -----------------------------------------------------------------------------------------------


def test_a_cluster_is_called_after_its_lps(plan: Plan) -> None:
    assert plan.clusters == {"lps-0": [IDS[0], IDS[2]], "lps-1": [IDS[1], IDS[3], IDS[4]]}
    assert plan.examples() == {"lps-0": 20, "lps-1": 50}


def test_a_restarted_gps_finds_its_plan(gps: GpsParts, plan: Plan) -> None:
    gps.restart()
    found = plan_of(gps)
    assert (found.is_made, found.rule, found.clusters) == (True, "2 as given", plan.clusters)
    assert found.version == plan.version


@pytest.mark.parametrize(
    ("overrides", "known"),
    [
        (["method.clusters=3"], 3),
        (["method.clusters=auto"], 0),
        (["method=oracle"], 2),
        (["method=random"], 2),
        (["method=random", "method.clusters=4"], 4),
    ],
)
def test_lpss_are_asked_for_as_soon_as_their_number_is_known(tmp_path: Path, overrides: list[str], known: int) -> None:
    gps = GpsParts(tmp_path, *overrides)
    gps.enrol(*range(5))
    plan = plan_of(gps)
    assert plan.clusters_known == known
    plan.make(GROUPING)
    assert plan.clusters_known == 2


def test_a_pod_has_all_the_clusters_of_its_devices(gps: GpsParts, plan: Plan) -> None:
    for index, pod_name in enumerate(["pod-0", "pod-0", "pod-1", "pod-1", ""]):
        gps.roster.devices[index].pod_name = pod_name
    assert plan.pods() == {"pod-0": ["lps-0", "lps-1"], "pod-1": ["lps-0", "lps-1"]}
    gps.roster.devices[3].pod_name = "pod-2"
    assert plan.pods() == {"pod-0": ["lps-0", "lps-1"], "pod-1": ["lps-0"], "pod-2": ["lps-1"]}


# --- late devices -------------------------------------------------------------------------------------------


def test_a_cluster_is_represented_by_its_most_relevant_device(gps: GpsParts, plan: Plan) -> None:
    # lps-0: 0 and 2 are equal, the lower index stands; lps-1: means over 1, 3, 4 are 0.8, 0.867, 0.733
    assert plan.representatives(list(gps.roster.devices.values()), RELEVANCE) == [0, 3]


def test_more_representatives_may_be_asked_for(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path, "method.representatives=2")
    gps.enrol(*range(5))
    plan = plan_of(gps)
    plan.make(GROUPING)
    assert plan.representatives(list(gps.roster.devices.values()), RELEVANCE) == [0, 1, 2, 3]
    means = plan.relevance_to_clusters({0: 0.2, 1: 0.9, 2: 0.4, 3: 0.7})
    assert means == {"lps-0": pytest.approx(0.3), "lps-1": pytest.approx(0.8)}


def test_without_relevance_nobody_stands_for_a_cluster(gps: GpsParts, plan: Plan) -> None:
    assert plan.representatives(list(gps.roster.devices.values()), None) == []


def test_a_late_device_joins_without_moving_the_others(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path)
    gps.enrol(0, 1, 2, 3)
    plan = plan_of(gps)
    plan.make(Grouping(clusters=((0, 2), (1, 3)), rule="2 as given"))
    gps.enrol(4)
    version = plan.version
    plan.place(gps.roster.devices[4], "lps-0", 3)
    assert plan.version == version + 1
    assert gps.roster.devices[4].from_global_round == 3
    assert plan.clusters == {"lps-0": [IDS[0], IDS[2], IDS[4]], "lps-1": [IDS[1], IDS[3]]}
    gps.restart()
    assert plan_of(gps).clusters == plan.clusters
