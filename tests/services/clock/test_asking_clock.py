"""Methods that ask devices in global rounds, on the virtual clock: one file, one timeline, whatever is killed."""

import json
from pathlib import Path

import pytest

from emulator.estimates.check import model_size, payloads_of
from emulator.estimates.check_times import expected_times
from emulator.estimates.retime import retime, write_retimed
from fedstrata.datasets import dataset_info, load_dataset
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from tests.support.disturbed import assert_same, disturbed
from tests.support.every_method import EXPERIMENT, OPTIONS
from tests.support.records import rows_of, summary_of
from tests.support.tiers import run_in_process

LINKS = (
    "{device-lps: {preset: lte, jitter: 10ms}, lps-gps: {up_rate: 5Mbit/s, down_rate: 9Mbit/s, latency: 15ms}, "
    "overrides: [{devices: [4], preset: nb-iot}], shared: {device-lps: {up_rate: 8Mbit/s}}}"
)
TIMED = ("clock=virtual", f"links={LINKS}", "compute={per_example: 1ms, exponential: 100ms}", "topology={lps: 2}")
KILLS = [
    {"do": "kill", "process": "lps-1", "at": {"point": "download", "round": 1}},
    {"do": "kill", "process": "device-001", "at": {"point": "download", "round": 1}},
    {"do": "kill", "process": "lps-0", "at": {"point": "upload", "round": 1}},  # the plan of the round is made
    {"do": "kill", "process": "gps", "at": {"point": "aggregation", "round": 1}},
    {"do": "kill", "process": "device-004", "at": {"point": "upload", "round": 2}},
]


def experiment_of(method: str, *changes: str) -> Experiment:
    chosen = json.dumps({"name": method, **OPTIONS[method]})
    return parse_experiment(EXPERIMENT, overrides=[f"method={chosen}", *TIMED, *changes])


# Of the four methods that ask in rounds, cfl and fedtsdp ask after training. Each of the four is in one of the tables.
@pytest.mark.parametrize("method", ["cfl", "fedfomo"])
def test_a_round_has_its_question_and_all_lpss_wait_for_the_plan(method: str, tmp_path: Path) -> None:
    folder = run_in_process(experiment_of(method), tmp_path / "run").folder
    asked = [row for row in rows_of(folder, "flows.csv") if row["tier"] == "lps"]
    assert len(asked) == 3 * 5
    assert all(int(row["answer_bytes"]) > 0 for row in asked)
    assert all((row["answer_examples"] == row["examples"]) == (method == "cfl") for row in asked)
    # device-004 on NB-IoT answers late, and lps-0, whose devices are all fast, waits for the plan as well
    rounds = [row for row in rows_of(folder, "timeline.csv") if row["tier"] == "lps"]
    for row in rounds:
        assert float(row["ends_s"]) - float(row["begins_s"]) > 3 * 1.6
    # and the same file retimed is the run itself; on other links what a run there has
    for change in ((), ("links.device-lps={preset: nb-iot, jitter: 1s}", "compute.per_example=3ms")):
        retimed = retime(folder, change)
        write_retimed(retimed, tmp_path / f"retimed-{len(change)}")
        expected = folder if not change else run_in_process(experiment_of(method, *change), tmp_path / "other").folder
        for name in ("timeline.csv", "waits.csv"):
            found = (tmp_path / f"retimed-{len(change)}" / name).read_bytes()
            assert found == (expected / name).read_bytes()


@pytest.mark.parametrize(("method", "rounds"), [("cfl", 1), ("fedfomo", 1), ("fedtsdp", 1), ("ifca", 1), ("ifca", 2)])
def test_the_check_expects_what_a_round_takes_where_nothing_is_drawn(method: str, rounds: int, tmp_path: Path) -> None:
    slow = "overrides: [{devices: [4], latency: 700ms}]"
    links = f"links={{device-lps: {{latency: 40ms}}, lps-gps: {{latency: 15ms}}, {slow}}}"
    a_global_round = f"training.lps_rounds_per_global_round={rounds}"
    experiment = experiment_of(method, links, "compute={per_example: 1ms}", a_global_round)
    payloads = payloads_of(experiment, model_size(experiment, dataset_info(experiment.data)))
    expected = expected_times(experiment, payloads, load_dataset(experiment.data, experiment.seed))
    rows = rows_of(run_in_process(experiment, tmp_path / "run").folder, "timeline.csv")
    took = {"gps": set[int](), "lps-0": set[int](), "lps-1": set[int]()}
    for row in rows[1:]:
        took[row["lps_id"] or "gps"].add(round(1e9 * (float(row["ends_s"]) - float(row["begins_s"]))))
    assert took["gps"] == {expected.global_round.ends_ns}
    # the slow device is the fifth, of lps-0: in each global round one round with the question, the others without
    assert len(took["lps-0"]) == rounds
    assert sum(took["lps-0"]) == rounds * expected.lps_round.ends_ns


@pytest.mark.runs
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("method", "processes"), [("ifca", 2), ("cfl", 5)])
def test_whatever_is_killed_it_is_the_same_run_to_the_bit_and_the_nanosecond(
    method: str, processes: int, tmp_path: Path
) -> None:
    experiment = experiment_of(method)
    calm = run_in_process(experiment, tmp_path / "calm").folder
    assert_same(disturbed(experiment.to_yaml(), KILLS, processes, tmp_path), calm)


# --- deadlines ----------------------------------------------------------------------------------------------

# on NB-IoT device-004 answers too late; device-001 answers in time, and its update would take more than six seconds
LATE = (
    "deadlines.lps={deadline_s: 4.5, quorum_ratio: 0.3}",
    "links={device-lps: {preset: lte, jitter: 10ms}, lps-gps: {up_rate: 5Mbit/s, down_rate: 9Mbit/s, latency: 15ms}, "
    "overrides: [{devices: [4], preset: nb-iot}, {devices: [1], up_rate: 6kbit/s, down_rate: 13Mbit/s}]}",
    "energy={radio: lte, compute: 5W}",
)


def late_experiment_of(method: str) -> Experiment:
    """With answers that are small beside updates."""
    return experiment_of(method, *LATE, *(["method.sketch=16"] if method in {"cfl", "fedtsdp"} else []))


LATE_KILLS: list[dict[str, object]] = [
    {"do": "kill", "process": "device-004", "at": {"point": "download", "round": 0}},  # it answers anew, and is late
    {"do": "kill", "process": "lps-0", "at": {"point": "upload", "round": 0}},  # the plan is made without it
    {"do": "kill", "process": "gps", "at": {"point": "download", "round": 1}},
    {"do": "kill", "process": "lps-1", "at": {"point": "download", "round": 1}},  # device-001 is busy
    {"do": "kill", "process": "gps", "at": {"point": "aggregation", "round": 1}},
]


@pytest.mark.parametrize("method", ["fedtsdp", "ifca"])
def test_whose_answer_or_update_is_late_is_left_out_and_the_other_lps_waits_no_longer(
    method: str, tmp_path: Path
) -> None:
    folder = run_in_process(late_experiment_of(method), tmp_path / "run").folder
    summary = summary_of(folder)
    excluded = {(each["device"], each["from"]) for each in summary["excluded"]}
    assert {("device-004", "round 1"), ("device-001", "round 1")} <= excluded
    assert {device for device, _ in excluded} == {"device-001", "device-004"}
    first = {row["lps_id"]: row for row in rows_of(folder, "timeline.csv") if row["lps_round"] == "1"}
    took = {name: float(row["ends_s"]) - float(row["begins_s"]) for name, row in first.items()}
    # both wait until the deadline for the answer of device-004, and lps-1 as long again for the update of device-001
    assert 4.5 < took["lps-0"] < 5.5
    assert 9 < took["lps-1"] < 10
    late = [row for row in rows_of(folder, "energy.csv") if row["late"] == "1" and row["lps_round"] == "1"]
    assert {row["device"] for row in late} == {"device-001", "device-004"}


@pytest.mark.runs
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("method", "processes"), [("fedfomo", 2), ("cfl", 5)])
def test_whatever_is_killed_who_answers_late_is_late_to_the_nanosecond(
    method: str, processes: int, tmp_path: Path
) -> None:
    experiment = late_experiment_of(method)
    calm = run_in_process(experiment, tmp_path / "calm").folder
    out = disturbed(experiment.to_yaml(), LATE_KILLS, processes, tmp_path)
    assert_same(out, calm)
    assert (out / "energy.csv").read_bytes() == (calm / "energy.csv").read_bytes()
