"""A regression of the user's own data through the three tiers: against plain PyTorch, and by several processes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from emulator.results.read_record import RunRecord
from fedstrata.datasets import dataset_info, load_dataset
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import load_experiment
from fedstrata.models import build_model
from fedstrata.partitions import device_data
from tests.support.programs import command_in
from tests.support.records import summary_of
from tests.support.tiers import run_in_process

OWN = """
import numpy as np

from fedstrata.datasets import Dataset, Examples


def load(settings):
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(400, 4)).astype(np.float32)
    targets = np.stack([inputs @ (1, -2, 0.5, 3), np.abs(inputs[:, 0])], 1) + rng.normal(0, 0.1, (400, 2))
    targets = targets.astype(np.float32)
    train, test = (Examples(inputs=inputs[at], targets=targets[at]) for at in (slice(300), slice(300, 400)))
    return Dataset(train=train, test=test)
"""
EXPERIMENT = """
name: own-regression
seed: 5
data: {name: "own_numbers:load", input_shape: [4], target_shape: [2]}
partition: {kind: iid, devices: 4, examples_per_device: 40}
model: {name: mlp, hidden: [8]}
task: regression
method: fedavg
training:
  global_rounds: 3
  lps_rounds_per_global_round: 1
  local_epochs: 2
  batch_size: 16
  optimiser: {learning_rate: 0.05, momentum: 0.5}
"""


@pytest.fixture(scope="module")
def home(folder: Path) -> Iterator[Path]:
    """A folder with the user's data and experiment, from which modules are imported."""
    (folder / "own_numbers.py").write_text(OWN)
    (folder / "own.yaml").write_text(EXPERIMENT)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def record(home: Path) -> RunRecord:
    return run_in_process(load_experiment(home / "own.yaml"), home / "run")


def test_a_regression_ends_as_plain_pytorch_does(record: RunRecord, home: Path) -> None:
    weights = federated(load_experiment(home / "own.yaml"))
    found = load_file(record.folder / "models" / "lps-0.safetensors")
    assert sorted(found) == sorted(weights)
    for name, values in found.items():
        assert np.abs(values - weights[name].numpy()).max() < 1e-6, name


def test_a_regression_is_measured_as_scikit_learn_does(record: RunRecord, home: Path) -> None:
    experiment = load_experiment(home / "own.yaml")
    weights = federated(experiment)
    tests = [
        device_data(experiment, load_dataset(experiment.data, experiment.seed), device).test for device in range(4)
    ]
    said = np.concatenate([outputs(weights, torch.tensor(each.inputs)).numpy() for each in tests]).ravel()
    true = np.concatenate([each.targets for each in tests if each.targets is not None]).ravel()
    expected = {
        "rmse": root_mean_squared_error(true, said),
        "mae": mean_absolute_error(true, said),
        "r2": r2_score(true, said),
    }
    summary = record.summary
    assert {metric.name: summary.mean_of(metric) for metric in summary.metrics} == pytest.approx(expected, rel=1e-5)
    assert record.headline.name == "rmse"
    assert not record.headline.higher_is_better
    first, last = record.rounds[0], record.rounds[-1]
    assert first.loss == pytest.approx(first.metrics["rmse"] ** 2, rel=1e-4)  # the mean squared error, of equal devices
    assert last.lowest is not None
    assert last.lowest < last.metrics["rmse"] < last.highest
    header = (record.folder / "rounds.csv").read_text().splitlines()[0]
    assert "loss,rmse,mae,r2,seconds,bytes_up,bytes_down,lowest_rmse,highest_rmse" in header


@pytest.mark.runs
def test_a_regression_is_the_same_by_two_device_processes(record: RunRecord, home: Path) -> None:
    words = ("run", "own.yaml", "--out", "by-2", "--quiet", "--device-processes", "2")
    done = command_in(home, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rmse" in done.stdout
    summaries = [summary_of(folder) for folder in (home / "by-2", record.folder)]
    assert all(summaries[0][key] == summaries[1][key] for key in ("model_sha256", "rmse", "device_mae", "task_r2"))


# --- plain PyTorch ------------------------------------------------------------------------------------------


def federated(experiment: Experiment) -> dict[str, torch.Tensor]:
    """The final model of FedAvg over devices with as many examples each, by the mean squared error."""
    model = build_model(experiment.model, dataset_info(experiment.data))
    weights = {name: torch.tensor(each) for name, each in model.layout.views(model.initial(experiment.seed)).items()}
    dataset = load_dataset(experiment.data, experiment.seed)
    for lps_round in range(experiment.training.global_rounds):
        ends = []
        for device in range(4):
            data = device_data(experiment, dataset, device).train
            inputs, targets = torch.tensor(data.inputs), torch.tensor(data.targets)
            own = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
            sgd = torch.optim.SGD(own.values(), lr=0.05, momentum=0.5)
            rng = np.random.default_rng([experiment.seed, device, lps_round])
            for order in (rng.permutation(len(data)) for _ in range(2)):
                for batch in np.split(order, range(16, len(order), 16)):
                    sgd.zero_grad()
                    (outputs(own, inputs[batch]) - targets[batch]).square().mean().backward()
                    sgd.step()
            ends.append(own)
        weights = {name: torch.stack([each[name].detach() for each in ends]).mean(0) for name in weights}
    return weights


def outputs(weights: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    hidden = (inputs @ weights["fc1.weight"].T + weights["fc1.bias"]).relu()
    return hidden @ weights["fc2.weight"].T + weights["fc2.bias"]
