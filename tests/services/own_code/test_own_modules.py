"""Runs of a torch module of the user's own that draws in training and has a layer that does not train."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import nn
from torch.nn.functional import cross_entropy, dropout

from device.training import DROPOUT
from emulator.results.read_record import RunRecord
from fedstrata.datasets import load_dataset
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import load_experiment
from fedstrata.partitions import device_data
from tests.support.programs import command_in
from tests.support.records import summary_of
from tests.support.tiers import run_in_process

OWN = """
from torch import nn
from torch.nn.functional import dropout

from fedstrata.models import from_module


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 16).requires_grad_(False), nn.Linear(16, 10)

    def forward(self, inputs):
        return self.last(dropout(self.first(inputs.flatten(1)).relu(), 0.3, self.training))


def net(settings, info):
    return from_module(Net, shared=[])
"""
EXPERIMENT = """
name: own-module
seed: 5
partition: {kind: iid, devices: 4, examples_per_device: 40}
model: {name: "own_module:net"}
method: fedavg
training:
  global_rounds: 3
  lps_rounds_per_global_round: 1
  local_epochs: 2
  batch_size: 16
  optimiser: {learning_rate: 0.2, momentum: 0.5}
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16).requires_grad_(False), nn.Linear(16, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(dropout(self.first(inputs.flatten(1)).relu(), 0.3, self.training))


@pytest.fixture(scope="module")
def home(folder: Path) -> Iterator[Path]:
    """A folder with the user's module and experiment, from which modules are imported."""
    (folder / "own_module.py").write_text(OWN)
    (folder / "own.yaml").write_text(EXPERIMENT)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def record(home: Path) -> RunRecord:
    return run_in_process(load_experiment(home / "own.yaml"), home / "run")


def hashes(folder: Path) -> tuple[dict[str, str], float]:
    summary = summary_of(folder)
    return summary["model_sha256"], summary["accuracy"]


def test_a_module_with_dropout_gives_the_same_run_twice(record: RunRecord, home: Path) -> None:
    again = run_in_process(load_experiment(home / "own.yaml"), home / "again")
    assert hashes(again.folder) == hashes(record.folder)


@pytest.mark.runs
def test_a_module_with_dropout_gives_the_same_run_by_two_device_processes(record: RunRecord, home: Path) -> None:
    words = ("run", "own.yaml", "--out", "by-2", "--quiet", "--device-processes", "2")
    done = command_in(home, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert hashes(home / "by-2") == hashes(record.folder)


def test_a_module_in_part_frozen_ends_as_a_plain_pytorch_loop_does(record: RunRecord, home: Path) -> None:
    experiment = load_experiment(home / "own.yaml")
    found = load_file(record.folder / "models" / "lps-0.safetensors")
    assert sorted(found) == ["last.bias", "last.weight"]
    module = federated(experiment)
    for name, values in found.items():
        assert np.abs(values - module.state_dict()[name].numpy()).max() < 1e-6, name


def federated(experiment: Experiment) -> Net:
    """The final model of FedAvg over devices with as many examples each."""
    torch.manual_seed(experiment.seed)
    module, dataset = Net(), load_dataset(experiment.data, experiment.seed)
    for lps_round in range(experiment.training.global_rounds):
        start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        trained = []
        for device in range(4):
            module.load_state_dict(start)
            train(module, device_data(experiment, dataset, device).train, [experiment.seed, device, lps_round])
            trained.append({name: tensor.clone() for name, tensor in module.state_dict().items()})
        module.load_state_dict({name: torch.stack([each[name] for each in trained]).mean(0) for name in start})
    return module


def train(module: Net, examples: object, address: list[int]) -> None:
    sgd = torch.optim.SGD(module.last.parameters(), 0.2, 0.5)
    orders, seeds = np.random.default_rng(address), np.random.default_rng([*address, DROPOUT])
    inputs: NDArray[np.float32] = examples.inputs  # type: ignore[attr-defined]
    labels: NDArray[np.int64] = examples.labels  # type: ignore[attr-defined]
    for _ in range(2):
        order = orders.permutation(len(labels))
        for batch in (order[start : start + 16] for start in range(0, len(order), 16)):
            torch.manual_seed(int(seeds.integers(1 << 63)))
            sgd.zero_grad()
            cross_entropy(module(torch.tensor(inputs[batch])), torch.tensor(labels[batch])).backward()
            sgd.step()
