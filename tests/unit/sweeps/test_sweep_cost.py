"""What a sweep costs before it starts: numbers to redo by hand."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.commands.main import execute
from emulator.estimates.sizing import device_memory
from emulator.sweeps.file import Sweep, sweep_of
from emulator.sweeps.sweep_cost import RowCost, row_costs, total_of
from fedstrata.datasets import Dataset, load_dataset
from fedstrata.errors import DataError
from fedstrata.experiment import Experiment

BASE: dict[str, Any] = {
    "name": "cost",
    "partition": {"kind": "iid", "devices": 4, "examples_per_device": 10},
    "method": "fedavg",
    "training": {"global_rounds": 3, "lps_rounds_per_global_round": 2, "local_epochs": 5},
}
FILE: dict[str, Any] = {
    "base": BASE,
    "seeds": [1, 2, 3],
    "cells": {"all": {}, "half": {"training.participation": 0.5}, "wide": {"model.hidden": [64]}},
}
MLP = 64 * 32 + 32 + 32 * 10 + 10  # weights


def sweep(**keys: Any) -> Sweep:
    return sweep_of({**FILE, **keys}, name="cost", where="cost", beside=Path())


def test_a_row_costs_its_rounds_times_its_devices() -> None:
    """In each of six LPS rounds, a device trains on 5 * 10 examples, and receives and sends a model."""
    everyone, half, wide = row_costs(sweep(), lambda *_: 0.01)
    assert [row.runs for row in (everyone, half, wide)] == [3, 3, 3]
    assert everyone.training_s == pytest.approx(6 * 4 * 50 * 0.01)
    assert half.training_s == pytest.approx(6 * 2 * 50 * 0.01)
    assert (everyone.sent_bytes, half.sent_bytes) == (6 * 4 * 2 * 4 * MLP, 6 * 2 * 2 * 4 * MLP)
    assert wide.sent_bytes == 6 * 4 * 2 * 4 * (64 * 64 + 64 + 64 * 10 + 10)


def test_a_row_needs_the_memory_that_check_states_for_a_process_with_all_devices() -> None:
    first = sweep().runs[0].experiment
    wanted = device_memory(first, load_dataset(first.data, first.seed)).of(4)
    assert row_costs(sweep(), None)[0].memory_bytes == wanted


def test_rows_with_the_same_model_and_batches_are_measured_once() -> None:
    asked: list[Experiment] = []

    def measure(experiment: Experiment, _: Dataset) -> float:
        asked.append(experiment)
        return 0.01 * len(asked)

    costs = row_costs(sweep(), measure)
    assert [experiment.model.hidden for experiment in asked] == [None, (64,)]
    assert [round(row.training_s, 6) for row in costs] == [12.0, 6.0, 24.0]


def test_each_processor_is_measured() -> None:
    cells = {"cpu": {}, "again": {"training.global_rounds": 2}, "gpu": {"devices.processor": "cuda"}}
    asked: list[str] = []

    def measure(experiment: Experiment, _: Dataset) -> float:
        asked.append(experiment.devices.processor)
        return 0.01

    row_costs(sweep(cells=cells), measure)
    assert asked == ["cpu", "cuda"]


def test_two_cores_share_the_runs_and_hold_three_at_once() -> None:
    rows = [
        RowCost(label="a", runs=2, training_s=3600.0, sent_bytes=1_000_000, memory_bytes=200_000_000),
        RowCost(label="b", runs=4, training_s=1800.0, sent_bytes=500_000, memory_bytes=300_000_000),
    ]
    said = total_of(rows, cores=2).replace("\u00a0", " ")
    assert said.startswith(  # 2 h + 2 h on two cores; 3 x 300 MB
        "6 runs: about 2 h 00 min of training on 2 cores, 4.00 MB between devices and LPSs, and up to 900 MB of "
        "memory for 3 runs at once\nRows are of one run: "
    )
    assert "Methods that train more than once per round take as many times longer" in said


def test_without_a_measurement_no_seconds_are_stated() -> None:
    rows = [RowCost(label="a", runs=1, training_s=0.0, sent_bytes=1_000_000, memory_bytes=200_000_000)]
    said = total_of(rows, cores=2).replace("\u00a0", " ")
    first, basis = said.splitlines()
    assert first == "1 run: 1.00 MB between devices and LPSs, and up to 200 MB of memory for 1 run at once"
    assert basis.endswith("memory of the process with its devices. Add --try to measure seconds of training.")


def test_a_run_that_is_not_possible_is_named() -> None:
    cells = {"all": {}, "many": {"partition.examples_per_device": 1000}}
    with pytest.raises(DataError, match=r"^many, seed 1: the partition needs 4 x 1000 examples"):
        row_costs(sweep(cells=cells), None)


def test_check_counts_the_runs_of_candidates_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three cells with two candidates each on two seeds, and three cells with three seeds."""
    tune = {"grid": {"training.optimiser.learning_rate": [0.1, 0.2]}, "seeds": [8, 9]}
    file = tmp_path / "sweep-of-three.yaml"
    file.write_text(yaml.safe_dump({**FILE, "tune": tune}))
    assert execute(["check", str(file)]) == 0
    said = capsys.readouterr().out.replace("\u00a0", " ")
    assert "candidate of tune" in said
    assert "\n21 runs: " in said
    assert [*tmp_path.iterdir()] == [file]


def test_check_of_a_sweep_needs_no_torch(tmp_path: Path) -> None:
    file = tmp_path / "three.yaml"
    file.write_text(yaml.safe_dump(FILE))
    code = (
        "import sys; sys.modules['torch'] = None\n"  # its import fails
        "from emulator.commands.main import execute\n"
        "sys.exit(execute(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "check", str(file)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "9 runs: " in run.stdout.replace("\u00a0", " ")


def test_check_measures_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "three.yaml"
    file.write_text(yaml.safe_dump(FILE))
    assert execute(["check", str(file), "--try"]) == 0
    assert "of training on " in capsys.readouterr().out


def test_a_sweep_file_is_changed_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "three.yaml"
    file.write_text(yaml.safe_dump(FILE))
    assert execute(["check", str(file), "--seed", "4"]) == 2
    assert "is a sweep file, which has its own seeds" in capsys.readouterr().err.replace("\n", " ")
