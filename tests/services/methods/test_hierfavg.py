"""FedAvg with a topology against NumPy code of HierFAVG's own loop over steps (Liu et al. 2020, Algorithm 1)."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from fedstrata.datasets import dataset_info, load_dataset
from fedstrata.models import build_model
from fedstrata.partitions import device_data
from tests.support.tiers import run_in_process, small

Weights = dict[str, NDArray[np.float64]]
EDGES, RATE, CLOUD_ROUNDS = ((0, 3), (1, 2, 4)), 0.1, 3  # devices of each edge server
DATASET = load_dataset(small().data, 0)


def slope(weights: Weights, inputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Weights:
    """The gradient of the mean cross-entropy of one hidden layer, by hand."""
    hidden = np.maximum(inputs @ weights["fc1.weight"].T + weights["fc1.bias"], 0)
    outputs = hidden @ weights["fc2.weight"].T + weights["fc2.bias"]
    shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    errors = (shares / shares.sum(axis=1, keepdims=True) - np.eye(10)[labels]) / len(labels)
    behind = (errors @ weights["fc2.weight"]) * (hidden > 0)
    return {
        "fc1.weight": behind.T @ inputs, "fc1.bias": behind.sum(axis=0),
        "fc2.weight": errors.T @ hidden, "fc2.bias": errors.sum(axis=0),
    }  # fmt: skip


def mean(models: list[Weights], sizes: list[int]) -> Weights:
    return {
        name: np.sum([size * each[name] for size, each in zip(sizes, models, strict=True)], axis=0) / sum(sizes)
        for name in models[0]
    }


@pytest.mark.parametrize(("kappa_1", "kappa_2"), [(1, 1), (3, 2), (2, 3)])
def test_fedavg_with_a_topology_is_hierfavg(kappa_1: int, kappa_2: int, tmp_path: Path) -> None:
    """With batches as large as a device's data, a local step is the paper's step along the full gradient."""
    plain = small()
    model = build_model(plain.model, dataset_info(plain.data))
    first = {name: view.astype(float) for name, view in model.layout.views(model.initial(plain.seed)).items()}
    data = [device_data(plain, DATASET, device).train for device in range(5)]
    inputs, sizes = [each.inputs.reshape(len(each), -1).astype(float) for each in data], [len(each) for each in data]
    models = [first] * 5
    for step in range(1, kappa_1 * kappa_2 * CLOUD_ROUNDS + 1):
        for device, weights in enumerate(models):
            gradient = slope(weights, inputs[device], data[device].labels)
            models[device] = {name: weights[name] - RATE * gradient[name] for name in weights}
        if step % kappa_1 == 0 and step % (kappa_1 * kappa_2):
            for devices in EDGES:
                edge = mean([models[device] for device in devices], [sizes[device] for device in devices])
                for device in devices:
                    models[device] = edge
        if step % (kappa_1 * kappa_2) == 0:
            models = [mean(models, sizes)] * 5
    record = run_in_process(
        small(
            "method=fedavg",
            f"topology={{lps: 2, devices: {[list(devices) for devices in EDGES]}}}",
            f"training={{global_rounds: {CLOUD_ROUNDS}, lps_rounds_per_global_round: {kappa_2}, "
            f"local_steps: {kappa_1}, batch_size: 64, optimiser: {{learning_rate: {RATE}}}}}",
        ),
        tmp_path / "run",
    )
    assert record.summary.status == "completed", record.summary.reason
    found = load_file(record.folder / "models" / "cluster-0.safetensors")
    for name, tensor in models[0].items():
        assert np.abs(found[name] - tensor).max() < 1e-6, name
        assert np.abs(first[name] - tensor).max() > 1e-3, name
