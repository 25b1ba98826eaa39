"""The method of experiments/own_code/adam.py, which trains by its own code: its models, its clock and its energy."""

import csv
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.nn.functional import cross_entropy

from emulator.results.read_record import RunRecord
from fedstrata.experiment import Experiment
from fedstrata.partitions import device_data
from tests.support.plain_pytorch import DATASET, Weights, initial_weights, weighted_mean
from tests.support.programs import REPOSITORY
from tests.support.tiers import run_in_process, small

OVERRIDES = (
    "method='adam:ByAdam'",
    "training.global_rounds=2",
    "training.lps_rounds_per_global_round=1",
    "clock=virtual",
    "compute={per_example: 2ms}",
    "energy={compute: 5W}",
)


@pytest.fixture(scope="module")
def experiment(folder: Path) -> Iterator[Experiment]:
    """Three devices of 60 examples, two of 50; the method's file is where modules are imported from."""
    shutil.copy(REPOSITORY / "experiments" / "own_code" / "adam.py", folder)
    sys.path.insert(0, str(folder))
    yield small(*OVERRIDES)
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def record(experiment: Experiment, folder: Path) -> RunRecord:
    return run_in_process(experiment, folder / "run")


def test_a_training_of_ones_own_ends_as_a_plain_pytorch_loop_does(record: RunRecord, experiment: Experiment) -> None:
    weights = initial_weights(experiment)
    examples = [device_data(experiment, DATASET, device).train for device in range(5)]
    for lps_round in range(2):
        trained = [by_adam(weights, examples[device], [experiment.seed, device, lps_round]) for device in range(5)]
        weights = weighted_mean(trained, [len(each) for each in examples])
    found = load_file(record.folder / "models" / "lps-0.safetensors")
    for name, expected in weights.items():
        assert np.abs(found[name] - expected).max() < 1e-6, name


def by_adam(weights: Weights, examples: object, address: list[int]) -> Weights:
    """A device's weights after one epoch in batches of 20."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    with torch.no_grad():
        for parameter, start in zip(model.parameters(), weights.values(), strict=True):
            parameter.copy_(torch.tensor(start))
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs, labels = torch.tensor(examples.inputs), torch.tensor(examples.labels)  # type: ignore[attr-defined]
    for batch in torch.tensor(np.random.default_rng(address).permutation(len(labels))).split(20):
        adam.zero_grad()
        cross_entropy(model(inputs[batch]), labels[batch]).backward()
        adam.step()
    trained = [parameter.detach().numpy().astype(np.float64) for parameter in model.parameters()]
    return dict(zip(weights, trained, strict=True))


def test_its_examples_take_time_and_energy(record: RunRecord) -> None:
    flows = [row for row in rows_of(record.folder / "flows.csv") if row["tier"] == "lps"]
    sizes = [60, 60, 60, 50, 50]
    assert sorted((row["global_round"], int(row["child"]), int(row["examples"])) for row in flows) == [
        (number, device, sizes[device]) for number in ("1", "2") for device in range(5)
    ]
    joules = [float(row["compute_j"]) for row in rows_of(record.folder / "energy.csv") if row["lps_round"]]
    assert sorted(joules) == pytest.approx(4 * [50 * 0.002 * 5] + 6 * [60 * 0.002 * 5])
    rounds = [row for row in rows_of(record.folder / "timeline.csv") if row["tier"] == "lps"]
    assert [float(row["ends_s"]) - float(row["begins_s"]) for row in rounds] == pytest.approx(2 * [60 * 0.002])


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
