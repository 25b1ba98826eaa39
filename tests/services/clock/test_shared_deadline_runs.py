"""Deadlines where devices share their edge's link: who is late is a function of the file, whatever happens."""

import json
from pathlib import Path

import pytest

from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from tests.support.disturbed import assert_same, disturbed
from tests.support.every_method import EXPERIMENT, OPTIONS
from tests.support.records import rows_of, summary_of
from tests.support.spanning_runs import weights_sha256
from tests.support.tiers import run_in_process, small

SHARED = "shared: {device-lps: {up_rate: 60kbit/s, down_rate: 500kbit/s, broadcast: true}}"
LINKS = (
    "links={device-lps: {preset: lte, jitter: 10ms}, lps-gps: {up_rate: 5Mbit/s, down_rate: 9Mbit/s, latency: 15ms}, "
    f"overrides: [{{devices: [4], preset: lte, up_rate: 12kbit/s}}], {SHARED}}}"
)
# An update takes 0.7 s of the shared link where it is alone. device-004 is late by its own link, at lps-0 with two
# others. device-003 still receives as the deadline passes; it moves to lps-0, where the shared link changes later.
ENTRIES = (
    "{at: 0s, cut: {devices: [3], for: 3300ms}}, {at: 1s, move: {devices: 3, to: lps-0}}, "
    "{at: 6s, set: {link: shared, up_rate: 80kbit/s}}, {at: 10s, cut: {link: shared, for: 300ms}}, "
    "{at: 11s, set: {devices: [4], preset: lte}}"
)
LATE = (
    "clock=virtual", LINKS, "compute={per_example: 2ms}", "topology={lps: 2}",
    "method={name: ditto}", "training.global_rounds=5", "training.lps_rounds_per_global_round=1",
    "deadlines.lps={deadline_s: 3, quorum_ratio: 0.3}", f"schedule=[{ENTRIES}]",
    "energy={radio: lte, compute: 5W}",
)  # fmt: skip
FAULTS: list[dict[str, object]] = [
    {"do": "kill", "process": "lps-0", "at": {"point": "upload", "round": 0, "count": 2}},  # not all have announced
    {"do": "kill", "process": "device-000", "at": {"point": "upload", "round": 1}},  # it has announced its update
    {"do": "kill", "process": "gps", "at": {"point": "aggregation", "round": 1}},
    {"do": "kill", "process": "lps-1", "at": {"point": "upload", "round": 2, "count": 2}},  # one is asked for its data
    {"do": "kill", "process": "lps-0", "at": {"point": "aggregation", "round": 3}},
    {"do": "kill", "process": "device-004", "at": {"point": "download", "round": 3}},
]


def excluded(folder: Path) -> set[tuple[str, str]]:
    summary = summary_of(folder)
    return {(each["device"], each["from"]) for each in summary["excluded"]}


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which devices are late over a shared link."""
    return run_in_process(small(*LATE), tmp_path_factory.mktemp("late")).folder


def test_who_is_late_is_broken_off_and_takes_part_in_the_next_round(late: Path) -> None:
    assert excluded(late) == {("device-003", "round 1"), *(("device-004", f"round {number}") for number in (1, 2, 3))}
    rounds = {
        (row["lps_id"], int(row["lps_round"])): row for row in rows_of(late, "timeline.csv") if row["tier"] == "lps"
    }
    took = {where: float(row["ends_s"]) - float(row["begins_s"]) for where, row in rounds.items()}
    # where somebody is late a round lasts until its deadline
    assert {where for where, seconds in took.items() if abs(seconds - 3) < 1e-9} == {
        ("lps-0", 1), ("lps-1", 1), ("lps-0", 2), ("lps-0", 3),
    }  # fmt: skip
    waits = {(row["lps_id"], row["lps_round"], row["child"]): row for row in rows_of(late, "waits.csv")}
    # 5,076 bytes at 24 kbit/s, since a third device has 12 of 60 until the deadline; latency 35 ms, jitter 10 ms
    assert 1.692 + 0.025 <= float(waits["lps-0", "1", "device-000"]["up_s"]) <= 1.692 + 0.045
    # device-003 has moved, which ends what it did: it has the next model as its link's cut is over, at 3.3 s
    joined = waits["lps-0", "2", "device-003"]
    assert 0.25 < float(joined["down_s"]) < 0.3
    assert all(float(row["waiting_s"]) >= 0 for row in waits.values())


def test_what_the_late_take_is_what_they_have_sent_by_the_deadline(late: Path) -> None:
    of = {(row["device"], row["lps_round"]): row for row in rows_of(late, "energy.csv")}
    assert {where for where, row in of.items() if row["late"] == "1"} == {
        ("device-003", "1"), *(("device-004", number) for number in ("1", "2", "3"))
    }  # fmt: skip
    # LTE: 438.39 mJ a megabit and 1,288.04 mW. device-004 begins after 0.12 s of download and 0.2 s of training
    seconds = 3 - float(of["device-004", "1"]["compute_j"]) / 5 - 0.115
    assert abs(float(of["device-004", "1"]["up_j"]) - (0.43839e-6 * 12_000 + 1.28804) * seconds) < 0.02
    # and device-003 never began
    assert float(of["device-003", "1"]["up_j"]) == 0


@pytest.mark.kills
@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", [1, 2, 5])
def test_whatever_is_killed_it_is_the_same_run_to_the_bit_and_the_nanosecond(
    late: Path, processes: int, tmp_path: Path
) -> None:
    out = disturbed(small(*LATE).to_yaml(), FAULTS, processes, tmp_path)
    assert_same(out, late)
    assert (out / "energy.csv").read_bytes() == (late / "energy.csv").read_bytes()


# --- questions in rounds ------------------------------------------------------------------------------------

# On NB-IoT device-004 answers too late. device-001 answers in time; its update would take longer than the others'.
ASKED = (
    "clock=virtual", "compute={per_example: 1ms, exponential: 100ms}", "topology={lps: 2}",
    "links={device-lps: {preset: lte, jitter: 10ms}, lps-gps: {up_rate: 5Mbit/s, down_rate: 9Mbit/s, latency: 15ms}, "
    "overrides: [{devices: [4], preset: nb-iot}, {devices: [1], up_rate: 6kbit/s, down_rate: 13Mbit/s}], "
    "shared: {device-lps: {up_rate: 40kbit/s}}}",
    "deadlines.lps={deadline_s: 4.5, quorum_ratio: 0.3}", "energy={radio: lte, compute: 5W}",
)  # fmt: skip
ASKED_FAULTS: list[dict[str, object]] = [
    {"do": "kill", "process": "device-004", "at": {"point": "download", "round": 0}},  # it answers anew, and is late
    {"do": "kill", "process": "lps-0", "at": {"point": "upload", "round": 0}},  # the plan is made without it
    {"do": "kill", "process": "lps-1", "at": {"point": "upload", "round": 1, "count": 2}},
    {"do": "kill", "process": "gps", "at": {"point": "download", "round": 1}},
    {"do": "kill", "process": "gps", "at": {"point": "aggregation", "round": 1}},
]


def asked_experiment_of(method: str) -> Experiment:
    """With answers that are small beside updates."""
    chosen = json.dumps({"name": method, **OPTIONS[method]})
    sketch = ["method.sketch=16"] if method in {"cfl", "fedtsdp"} else []
    return parse_experiment(EXPERIMENT, overrides=[f"method={chosen}", *ASKED, *sketch])


@pytest.mark.parametrize("method", ["ifca", "cfl"])
def test_late_answers_and_late_updates_are_found_of_all_together(method: str, tmp_path: Path) -> None:
    folder = run_in_process(asked_experiment_of(method), tmp_path / "run").folder
    assert excluded(folder) == {
        (device, f"round {number}") for device in ("device-001", "device-004") for number in (1, 2, 3)
    }
    rounds = [row for row in rows_of(folder, "timeline.csv") if row["tier"] == "lps"]
    took = {(row["lps_id"], row["lps_round"]): float(row["ends_s"]) - float(row["begins_s"]) for row in rounds}
    # all wait until the deadline for the answer of device-004, and lps-1 as long again for the update of device-001
    assert all(4.5 + 2 < seconds < 4.5 + 2.4 for (lps, _), seconds in took.items() if lps == "lps-0")
    assert all(9 < seconds < 9.2 for (lps, _), seconds in took.items() if lps == "lps-1")
    # two share 40 kbit/s for more than 5,000 bytes each; device-001 has 6 of them for itself until the deadline
    ups = {row["lps_id"]: float(row["up_s"]) for row in rounds if row["lps_round"] == "1"}
    assert 2 < ups["lps-0"] < 2.3
    assert 40_000 / 34_000 < ups["lps-1"] < 1.4
    late = [row for row in rows_of(folder, "energy.csv") if row["late"] == "1"]
    assert {row["device"] for row in late} == {"device-001", "device-004"}


@pytest.mark.kills
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("method", "processes"), [("ifca", 1), ("fedfomo", 2), ("cfl", 5)])
def test_whatever_is_killed_who_answers_late_is_late_to_the_nanosecond(
    method: str, processes: int, tmp_path: Path
) -> None:
    experiment = asked_experiment_of(method)
    calm = run_in_process(experiment, tmp_path / "calm").folder
    out = disturbed(experiment.to_yaml(), ASKED_FAULTS, processes, tmp_path)
    assert_same(out, calm)
    assert (out / "energy.csv").read_bytes() == (calm / "energy.csv").read_bytes()


# --- masked updates -----------------------------------------------------------------------------------------

MASKED = (
    "partition={kind: iid, devices: 5, examples_per_device: 60}", "method=fedavg", "clock=virtual",
    "training.global_rounds=2", "training.lps_rounds_per_global_round=1", "compute={per_example: 2ms}",
    "links={device-lps: {preset: lte}, overrides: [{devices: [4], preset: lte, up_rate: 12kbit/s}], "
    "shared: {device-lps: {up_rate: 120kbit/s}}}",
)  # fmt: skip


def test_a_late_device_is_out_before_others_mask_for_it_and_nothing_is_summed_up_twice(tmp_path: Path) -> None:
    # masked updates are twice as large, so that they have twice as long
    changes = {3: (), 6: ("secure_aggregation={min_devices: 3}",)}
    plain, masked = (
        run_in_process(
            small(*MASKED, *more, f"deadlines.lps={{deadline_s: {seconds}, quorum_ratio: 0.3}}"),
            tmp_path / str(seconds),
        ).folder
        for seconds, more in changes.items()
    )
    assert excluded(masked) == excluded(plain) == {("device-004", "round 1"), ("device-004", "round 2")}
    assert weights_sha256(masked) == weights_sha256(plain)
