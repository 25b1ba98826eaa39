"""Devices that the schedule moves to another LPS, as the plans have them and the journal keeps them."""

from pathlib import Path

from fedstrata.methods import Plan
from gps.journal.answers import BEFORE
from tests.support.gps_parts import IDS, GpsParts


def gps_with(folder: Path, plan: Plan, *overrides: str) -> GpsParts:
    gps = GpsParts(folder, *overrides)
    gps.enrol(*range(5))
    gps.places.make(BEFORE, plan)
    return gps


def test_a_device_that_an_lps_has_refused_is_not_moved_before_and_after_a_restart(tmp_path: Path) -> None:
    gps = gps_with(tmp_path, Plan(clusters=((0, 2), (1, 3, 4)), rule="2 as given"))
    gps.journal.exclude(IDS[0], "training", "refused: an update of NaN")
    gps.journal.exclude(IDS[2], "round 1", "missed the deadline")
    assert gps.places.move(1, {0: 1, 2: 1}) == [IDS[2]]
    gps.restart()
    assert gps.places.move(2, {0: 1, 2: 1}) == []
    assert gps.places.moves() == [(1, IDS[2], "lps-0", "lps-1")]
