"""Asynchronous rounds in real time: their updates differ from run to run, and the models follow from these updates."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from tests.services.clock.test_asynchronous_runs import composition, computed, run
from tests.support.hand_started import Processes
from tests.support.programs import Program, run_to_the_end
from tests.support.records import rows_of, summary_of
from tests.support.tiers import small

BUFFERED = "training.rounds.lps={kind: buffered, buffer: 2, weights: {kind: polynomial}}"
TIMED = "training.rounds.lps={kind: timed, period: 40ms, weights: {kind: catch_up, most: 2}}"
SOME = "training.rounds.lps={kind: buffered, buffer: 1, concurrency: 2}"
ROUNDS = ("training.global_rounds=4", "training.evaluate_every=100", "topology={lps: 1}", "method=fedavg")
HOME = {"lps-0": list(range(5))}
SLOW = "links={device-lps: {latency: 2ms, up_rate: 8Mbit/s}, overrides: [{devices: [2], up_rate: 1Mbit/s}]}"


def check_model(experiment: Experiment, folder: Path) -> None:
    """Check the final model of a run against the formulas, for the updates that the record lists."""
    found = composition(folder)
    assert sorted(number for _, number in found) == list(range(experiment.training.lps_rounds))
    expected = computed(experiment, found, HOME)
    saved = load_file(next((folder / "models").glob("*.safetensors")))
    for name, values in expected.items():
        assert np.abs(saved[name] - values).max() < 1e-6, name


def model_size(folder: Path) -> int:
    """The number of parameters of the model."""
    return sum(values.size for values in load_file(next((folder / "models").glob("*.safetensors"))).values())


@pytest.mark.parametrize("kind", [BUFFERED, TIMED, SOME])
@pytest.mark.parametrize("clock", ["none", "real"])
def test_a_run_is_what_follows_from_the_updates_of_its_rounds(folder: Path, kind: str, clock: str) -> None:
    links = (SLOW,) if clock == "real" else ()
    experiment = small(*ROUNDS, *links, kind, f"clock={clock}", "training.lps_rounds_per_global_round=3")
    record = run(experiment, folder / f"{clock}-{len(kind)}")
    check_model(experiment, record.folder)
    rows = rows_of(record.folder, "contributions.csv")
    assert all(float(row["asked_s"]) < float(row["arrived_s"]) for row in rows)
    works = [(float(row["asked_s"]), float(row["arrived_s"])) for row in rows]
    at_once = max(sum(asked <= at < arrived for asked, arrived in works) for at, _ in works)
    assert at_once <= 2 if kind == SOME else at_once > 2
    if clock == "real" and kind != SOME:
        took = [float(row["arrived_s"]) - float(row["asked_s"]) for row in rows if row["device"] == "device-002"]
        assert min(took) >= 8 * 4 * model_size(record.folder) / 1e6  # its link carries 1 Mbit/s


def test_devices_share_a_real_uplink(folder: Path) -> None:
    shared = "links={device-lps: {latency: 2ms}, shared: {device-lps: {up_rate: 8Mbit/s}}}"
    experiment = small(*ROUNDS, shared, BUFFERED, "clock=real")
    record = run(experiment, folder / "shared")
    check_model(experiment, record.folder)
    rows = rows_of(record.folder, "contributions.csv")
    end_s = max(float(row["arrived_s"]) for row in rows)
    assert end_s >= len(rows) * 8 * 4 * model_size(record.folder) / 8e6  # the uplink carries one update after the other


FILE = """
name: killed
partition:
  kind: tasks
  tasks: [{name: all, labels: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], devices: 5, examples_per_device: 40}]
model: {name: mlp, hidden: [16]}
method: fedavg
topology: {lps: 1}
clock: real
links: {device-lps: {latency: 2ms, up_rate: 8Mbit/s}, overrides: [{devices: [2], up_rate: 1Mbit/s}]}
training:
  global_rounds: 6
  lps_rounds_per_global_round: 2
  evaluate_every: 100
  rounds: {lps: {kind: buffered, buffer: 2, weights: {kind: catch_up, most: 4}}}
"""
VANISHING = (
    FILE.replace("clock: real", "clock: none").replace("global_rounds: 6", "global_rounds: 12")
    + """
deadlines: {lps: {deadline_s: 2, quorum_ratio: 0.2}}
"""
)


@pytest.mark.runs
def test_a_device_that_vanishes_holds_up_no_round(tmp_path: Path) -> None:
    text = VANISHING[: VANISHING.index("links:")] + VANISHING[VANISHING.index("training:") :]
    with Processes(tmp_path / "run", text) as processes:
        processes.lps(0)
        processes.devices("0-3")
        vanishing = processes.devices("4-4")
        processes.until_round(2)
        vanishing.process.kill()
        record = processes.record()
    check_model(parse_experiment(text), record)
    rows = rows_of(record, "contributions.csv")
    assert {int(row["lps_round"]) for row in rows} == {*range(1, 25)}
    assert max((int(row["lps_round"]) for row in rows if row["device"] == "device-004"), default=0) < 24
    excluded = {(each["device"], each["reason"]) for each in summary_of(record)["excluded"]}
    assert excluded <= {("device-004", "missed the deadline")}  # only if its update was announced, and did not come


KILLS = {
    "a round is complete": [("lps-0", "aggregation", "round", 3)],
    "an update has come": [("lps-0", "upload", "round", 4)],
    "a device has announced": [("device-002", "upload", "count", 1)],
    "the next model is sent": [("lps-0", "download", "round", 5)],
    "half a file is written": [("lps-0", "state_write", "count", 9)],
    "all of these": [
        ("lps-0", "download", "round", 2),
        ("device-000", "upload", "count", 3),
        ("lps-0", "aggregation", "round", 6),
    ],
}


def check_repeated(record: Path, out: Path, *words: str, processes: int) -> None:
    """Repeat the rounds of a record, and compare the models bit for bit."""
    run_to_the_end(record / "experiment.yaml", out, "--arrivals", str(record), *words, processes=processes)
    assert composition(out) == composition(record)
    for key in ("model_sha256", "device_accuracy", "run_id"):
        assert summary_of(out)[key] == summary_of(record)[key]


@pytest.mark.runs
def test_a_run_repeats_the_rounds_of_a_record(tmp_path: Path) -> None:
    file, out = tmp_path / "first.yaml", tmp_path / "first"
    file.write_text(FILE)
    run_to_the_end(file, out)
    check_repeated(out, tmp_path / "again", processes=1)
    other = tmp_path / "other.yaml"
    other.write_text(FILE.replace("buffer: 2", "buffer: 3"))
    for words, said in (
        ((str(other), "--arrivals", str(out)), f"run {out / 'experiment.yaml'}"),
        ((str(file), "--set", "clock=virtual", "--arrivals", str(out)), "--arrivals is for asynchronous rounds with"),
        ((str(file), "--arrivals", str(tmp_path)), f"{tmp_path / 'summary.json'} is missing"),
    ):
        log = tmp_path / "refused.log"
        with Program("emulator", "run", *words, "--out", str(tmp_path / "refused"), log=log) as program:
            assert program.end() in {2, 3}
        assert said in log.read_text()
        assert not (tmp_path / "refused").exists()


@pytest.mark.kills
@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_process_changes_the_updates_of_rounds_but_the_model_still_follows_from_them(
    tmp_path: Path, moment: str
) -> None:
    file, out = tmp_path / "killed.yaml", tmp_path / "run"
    file.write_text(FILE)
    faults: list[dict[str, Any]] = [
        {"do": "kill", "process": process, "at": {"point": point, key: number}}
        for process, point, key, number in KILLS[moment]
    ]
    lines = run_to_the_end(file, out, "--set", f"faults={json.dumps(faults)}")
    assert len([line for line in lines if line["event"] == "restart"]) == len(faults)
    assert summary_of(out)["excluded"] == []
    check_model(parse_experiment(FILE), out)
    check_repeated(out, tmp_path / "again", "--set", f"faults={json.dumps(faults[:1])}", processes=3)
