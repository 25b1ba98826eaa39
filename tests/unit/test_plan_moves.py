"""Devices that the schedule moves to another LPS, as the plans have them and the journal keeps them."""

from pathlib import Path

from fedstrata.methods import Plan
from gps.journal.journal import BEFORE
from tests.support.gps_parts import IDS, GpsParts


def gps_with(folder: Path, plan: Plan, *overrides: str) -> GpsParts:
    gps = GpsParts(folder, *overrides)
    gps.enrol(*range(5))
    gps.plans.make(BEFORE, plan)
    return gps


def test_a_device_that_an_lps_has_refused_is_not_moved_before_and_after_a_restart(tmp_path: Path) -> None:
    gps = gps_with(tmp_path, Plan(clusters=((0, 2), (1, 3, 4)), rule="2 as given"))
    gps.journal.exclude(IDS[0], "training", "refused: an update of NaN")
    gps.journal.exclude(IDS[2], "round 1", "missed the deadline")
    assert gps.plans.move(1, {0: 1, 2: 1}) == [IDS[2]]
    gps.restart()
    assert gps.plans.move(2, {0: 1, 2: 1}) == []
    assert gps.plans.moves() == [(1, IDS[2], "lps-0", "lps-1")]


def test_who_moves_while_it_is_busy_is_so_where_it_comes_to_whatever_the_gps_goes_through(tmp_path: Path) -> None:
    gps = gps_with(tmp_path, Plan(clusters=((0, 1, 2, 3, 4),), rule="one"), "method=fedavg", "topology={lps: 2}")
    busy = lambda: [gps.plans.busy_ns(gps.roster.devices[index]) for index in range(5)]  # noqa: E731
    # lps-0 has 0, 2 and 4; what another says of device 2 counts for nothing
    gps.plans.move(1, {0: 1, 2: 1}, {"lps-0": {0: 70, 4: 80}, "lps-1": {2: 90}})
    for _ in range(2):
        assert busy() == [70, 0, 0, 0, 0]
        gps.restart()
    gps.plans.move(2, {0: 0, 2: 0}, {"lps-1": {2: 100}})  # device 0 is free by then
    for _ in range(2):
        assert busy() == [0, 0, 100, 0, 0]
        gps.restart()
    for back_to, are_busy in ((1, [70, 0, 0, 0, 0]), (0, [0] * 5)):
        gps.plans.go_back_to(back_to)
        for _ in range(2):
            assert busy() == are_busy
            gps.restart()
