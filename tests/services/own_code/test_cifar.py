"""The CIFAR-10 experiment of Ali & Arafa from files to record, on small files in the published formats."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedstrata.datasets.cifar import CIFAR_10
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods.profiles.resnet_features import _shapes
from tests.support.tiers import run_in_process

MACHINES = (0, 1, 8, 9)  # plane, car, ship, truck
TWO_TASKS = """
name: cifar-two-tasks
seed: 3
data: {name: cifar-10}
partition:
  kind: tasks
  minority_ratio: 0.1
  tasks:
    - {name: machines, labels: [0, 1, 8, 9], devices: 5, examples_per_device: 20}
    - {name: animals, labels: [2, 3, 4, 5, 6, 7], devices: 5, examples_per_device: 20}
model: {name: cnn}
method: {name: one_shot, clusters: 2, features: "own_phi_for_test:phi", feature_dim: 512}
training: {global_rounds: 1, lps_rounds_per_global_round: 2, optimiser: {learning_rate: 0.05}}
"""


def write_cifar_10(folder: Path, records: int = 60) -> None:
    """Images of noise, brighter in red for machines and in blue for animals, in the binary version's files."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    for name in (*CIFAR_10.train, CIFAR_10.test):
        labels = (np.arange(records) % 10).astype(np.uint8)
        images = rng.integers(0, 100, (records, 3, 1024), np.uint8)
        is_machine = np.isin(labels, MACHINES)
        images[is_machine, 0] += 120
        images[~is_machine, 2] += 120
        content = np.concatenate([labels[:, None], images.reshape(records, -1)], axis=1)
        (folder / name).write_bytes(content.tobytes())


def write_phi(folder: Path) -> None:
    """A ResNet-18 of drawn weights, and own code that takes its features."""
    rng = np.random.default_rng(2)
    weights = {}
    for name, shape in _shapes().items():
        spread = 1 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.5
        centre = 1.0 if len(shape) == 1 and name.endswith(("var", "weight")) else 0.0
        weights[name] = torch.tensor(rng.uniform(centre - spread, centre + spread, shape).astype(np.float32))
    path = folder / "drawn.pth"
    torch.save(weights, path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "own_phi_for_test.py").write_text(
        "from pathlib import Path\n"
        "from fedstrata.methods.profiles.resnet_features import resnet18_features\n"
        f"phi = resnet18_features(Path({str(path)!r}), sha256={sha256!r})\n"
    )


@pytest.mark.runs
def test_cifar_devices_are_grouped_by_the_features_of_a_resnet18(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar_10(tmp_path / "cifar-10")
    write_phi(tmp_path)
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_phi_for_test", raising=False)
    summary = run_in_process(parse_experiment(TWO_TASKS), tmp_path / "run").summary
    assert summary.status == "completed"
    assert summary.adjusted_rand_index == 1.0
    assert len(summary.clusters) == 2
    assert summary.mean is not None
