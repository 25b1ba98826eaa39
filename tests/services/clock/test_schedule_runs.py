"""Runs with a schedule: who is there, who has moved and when are a function of the file, whatever happens meanwhile."""

import json
import signal
from functools import partial
from pathlib import Path

import pytest

from emulator.estimates.retime import retime
from emulator.results.read_record import load_record
from fedstrata.errors import ExperimentError
from fedstrata.process.fault_points import VARIABLE
from tests.support.disturbed import assert_same, disturbed
from tests.support.hand_started import Processes
from tests.support.programs import events
from tests.support.records import rows_of, summary_of
from tests.support.spanning_runs import weights_sha256
from tests.support.tiers import run_in_process, small

LINKS = "{device-lps: {preset: lte, jitter: 10ms}, lps-gps: {up_rate: 5Mbit/s, down_rate: 9Mbit/s, latency: 15ms}}"
TIMED = ("clock=virtual", f"links={LINKS}", "compute={per_example: 10ms}", "topology={lps: 2}")
PERSONAL = (*TIMED, "method={name: ditto}", "training.global_rounds=4", "training.lps_rounds_per_global_round=1")
# Rounds begin at 0, 3.3, 9.7 and 16.1 s: device-000 is at lps-1 from the third on, device-001 away in the second.
ENTRIES = (
    "{at: 4s, move: {devices: 0, to: lps-1}}, {at: 3s, leave: {devices: [1], for: 1s}}, "
    "{at: 1s, set: {devices: [3], preset: nb-iot}}, {at: 3s, cut: {link: lps-gps, lps: [0], for: 500ms}}"
)
SCHEDULED = (*PERSONAL, f"schedule=[{ENTRIES}]")


def flows(folder: Path) -> set[tuple[int, str, int]]:
    """By global round and LPS the devices that have taken part."""
    rows = [row for row in rows_of(folder, "flows.csv") if row["tier"] == "lps"]
    return {(int(row["global_round"]), row["lps_id"], int(row["child"])) for row in rows}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a schedule."""
    return run_in_process(small(*SCHEDULED), tmp_path_factory.mktemp("scheduled")).folder


def test_a_device_trains_at_the_lps_that_it_has_moved_to_and_not_while_it_is_away(run: Path) -> None:
    there = flows(run)
    homes = {number: {lps for at, lps, child in there if (at, child) == (number, 0)} for number in (1, 2, 3, 4)}
    assert homes == {1: {"lps-0"}, 2: {"lps-0"}, 3: {"lps-1"}, 4: {"lps-1"}}
    assert {at for at, _, child in there if child == 1} == {1, 3, 4}
    (moved,) = load_record(run).summary.moves
    assert (moved.device, moved.came_from, moved.to, moved.global_round) == ("device-000", "lps-0", "lps-1", 3)
    assert summary_of(run)["excluded"] == []


@pytest.mark.parametrize("personal", [True, False])
def test_a_move_changes_no_bit_of_what_is_learned(personal: bool, tmp_path: Path) -> None:
    changes = PERSONAL if personal else (*PERSONAL, "method=fedavg")
    move = "schedule=[{at: 2s, move: {devices: 0, to: lps-1}}]"  # a round takes 1.2 s here
    stayed, moved = (
        run_in_process(small(*changes, *more), tmp_path / name).folder
        for name, more in (("stay", ()), ("move", (move,)))
    )
    assert load_record(moved).summary.moves
    assert weights_sha256(moved) == weights_sha256(stayed)
    # what devices keep for themselves went along, to the bit
    said = [summary_of(folder) for folder in (moved, stayed)]
    assert said[0]["personal_sha256"] == said[1]["personal_sha256"]
    assert bool(said[0]["personal_sha256"]) == personal
    assert said[0]["device_accuracy"] == said[1]["device_accuracy"]


FAULTS = [
    {"do": "kill", "process": "gps", "at": {"point": "aggregation", "round": 1}},  # the round before the move
    {"do": "kill", "process": "lps-0", "at": {"point": "download", "round": 2}},  # the first round without the device
    {"do": "kill", "process": "lps-1", "at": {"point": "upload", "round": 2}},  # its first round here
    {"do": "kill", "process": "device-000", "at": {"point": "download", "round": 2}},
    {"do": "kill", "process": "gps", "at": {"point": "download", "round": 2}},
]


@pytest.mark.runs
def test_whatever_is_killed_it_is_the_same_run_to_the_bit_and_the_nanosecond(run: Path, tmp_path: Path) -> None:
    assert_same(disturbed(small(*SCHEDULED).to_yaml(), FAULTS, 5, tmp_path), run)


def test_a_run_whose_schedule_says_who_trains_is_not_retimed(run: Path) -> None:
    with pytest.raises(
        ExperimentError,
        match=r"schedule: on other links other devices are away or have moved.* run the experiment again",
    ):
        retime(run, ["compute.per_example=2ms"])


# --- a device that is late as it moves ----------------------------------------------------------------------

# device-000 would be back with its first update after some 4.6 s. It hangs on lps-1 from the second round on, from
# 2.1 s, takes part in it at once over a faster link, and hangs on lps-0 again from the third on.
LATE_ENTRIES = (
    "{at: 1s, move: {devices: 0, to: lps-1}}, {at: 2s, set: {devices: [0], preset: lte}}, "
    "{at: 3s, move: {devices: 0, to: lps-0}}"
)
LATE = (
    *PERSONAL,
    f"links={LINKS.removesuffix('}')}, overrides: [{{devices: [0], preset: lte, up_rate: 12kbit/s}}]}}",
    "deadlines.lps={deadline_s: 2, quorum_ratio: 0.3}",
    f"schedule=[{LATE_ENTRIES}]",
)
LATE_FAULTS: list[dict[str, object]] = [
    {"do": "kill", "process": "gps", "at": {"point": "aggregation", "round": 0}},
    {"do": "kill", "process": "lps-1", "at": {"point": "download", "round": 1}},  # the round that it joins
    {"do": "kill", "process": "gps", "at": {"point": "download", "round": 1}},
    {"do": "kill", "process": "lps-1", "at": {"point": "upload", "round": 2}},
    {"do": "kill", "process": "device-000", "at": {"point": "download", "round": 2}},
    {"do": "kill", "process": "lps-0", "at": {"point": "aggregation", "round": 2}},
]


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which a device moves while it is late."""
    return run_in_process(small(*LATE), tmp_path_factory.mktemp("late")).folder


def test_a_device_that_is_late_as_it_moves_is_free_where_it_comes_to(late: Path) -> None:
    summary = summary_of(late)
    assert [(each["device"], each["from"]) for each in summary["excluded"]] == [("device-000", "round 1")]
    where = {(at, lps) for at, lps, child in flows(late) if child == 0}
    assert where == {(2, "lps-1"), (3, "lps-0"), (4, "lps-0")}
    assert [each["global_round"] for each in summary["moves"]] == [2, 3]
    joined = [row for row in rows_of(late, "waits.csv") if row["child"] == "device-000" and row["lps_id"] == "lps-1"]
    assert all(float(row["down_s"]) < 0.2 for row in joined)  # its model alone, from the beginning of a round


@pytest.mark.runs
def test_whatever_is_killed_a_late_device_that_moves_is_late_to_the_nanosecond(late: Path, tmp_path: Path) -> None:
    assert_same(disturbed(small(*LATE).to_yaml(), LATE_FAULTS, 2, tmp_path), late)


# --- a GPS that goes back -------------------------------------------------------------------------------------


def dying(folder: Path, point: str, number: int) -> dict[str, str]:
    """The environment of a program that kills itself at a point of a round, once."""
    return {VARIABLE: json.dumps([{"point": point, "round": number, "marker": str(folder / f"died-{point}")}])}


@pytest.mark.kills
@pytest.mark.parametrize(
    ("expected", "changes", "opened"), [("run", SCHEDULED, 2), ("late", LATE, 1), ("late", LATE, 2)]
)
def test_where_the_gps_goes_back_over_a_move_all_go_back_and_it_is_the_same_run(
    expected: str, changes: tuple[str, ...], opened: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    dies = partial(dying, tmp_path, number=opened)
    with Processes(tmp_path / "run", small(*changes).to_yaml(), gps=dies("upload")) as processes:
        for number in (0, 1):
            processes.lps(number)
        processes.devices("0,1,2,4", keeps_state=True)  # device-000 has moved to lps-1
        slow = processes.devices("3", keeps_state=True, environment=dies("download"))
        for program in (slow, processes.first_gps):  # lps-0 alone has ended the round
            assert program.process.wait(60) == -signal.SIGKILL
        (newest,) = (tmp_path / "run" / "gps").glob(f"*/shared-{opened:06d}.safetensors")
        newest.write_bytes(newest.read_bytes()[:-1])
        processes.gps_again()
        processes.devices("3", keeps_state=True)
        record = processes.record()
    assert "state_passed_over" in {told["event"] for told in events(tmp_path / "run" / "gps.2.log")}
    assert_same(record, request.getfixturevalue(expected))
