"""How fast a machine trains: what is timed, what counts, and how it is told."""

import json
from itertools import count
from pathlib import Path

import pytest

from device.pace import Pace, data_here, measured_pace, training_job
from emulator.commands.bench_device import pace_fields, said_of
from emulator.commands.main import execute
from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import parse_experiment

TEXT = """
name: pace
partition: {kind: iid, devices: 2, examples_per_device: 40}
model: {name: mlp, hidden: [4]}
training: {local_steps: 3, batch_size: 16}
"""
TIMED = ("clock=virtual", "compute.per_example=1ms")


def test_a_round_is_timed_whole_and_the_first_does_not_count() -> None:
    ticks = count(0.0, 4.0)  # seconds: every round takes four
    experiment = parse_experiment(TEXT)
    job = training_job(experiment, data_here(experiment), 1)
    pace = measured_pace(job, 5, clock=lambda: next(ticks))
    assert pace == Pace(seconds=(0.1,) * 5, examples=40)  # batches of 16, 16 and 8
    assert next(ticks) == 4.0 * 12


def test_the_median_counts() -> None:
    assert Pace(seconds=(0.002, 0.001, 0.009), examples=1).per_example_ns == 2_000_000


def test_it_is_told_as_the_file_wants_it() -> None:
    pace, plain = Pace(seconds=(0.00123456,), examples=40), parse_experiment(TEXT)
    assert "compute: {per_example: 1.23ms}" in said_of(pace, plain)
    assert "profiles" not in said_of(pace, plain)
    timed = parse_experiment(TEXT, overrides=TIMED)
    assert said_of(pace, timed).endswith("profiles: {here: 1.23}")
    assert pace_fields(pace, timed)["profile"] == 1.23
    assert parse_experiment(TEXT, overrides=["clock=virtual", "compute={per_example: 1.23ms}"]).clock == "virtual"


def test_the_command_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pace.yaml").write_text(TEXT)
    assert execute(["bench-device", str(tmp_path / "pace.yaml"), "--rounds", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rounds"], said["examples"], said["model"]) == (2, 40, "mlp")
    assert 0 < said["fastest_ns"] <= said["per_example_ns"] <= said["slowest_ns"]


def test_what_cannot_be_measured_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pace.yaml").write_text(TEXT)
    assert execute(["bench-device", str(tmp_path / "pace.yaml"), "--device", "7"]) == 2
    assert capsys.readouterr().err == "error: device 7 is not one of 0 to 1\n"
    boards = "name: b\npartition: {kind: local, names: [a]}\ndata: {name: folder, input_shape: [4], num_classes: 2}\n"
    with pytest.raises(ExperimentError, match="the data are on the boards"):
        data_here(parse_experiment(boards))
