"""What the tiers compute, against the same computed plainly: one loop of PyTorch, a page of NumPy."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from emulator.results.read_record import RunRecord
from fedstrata.experiment import Experiment
from fedstrata.partitions import device_data
from tests.support.plain_pytorch import DATASET, HEAD, SHARED, Weights, initial_weights, trained_by, weighted_mean
from tests.support.tiers import run_in_process, small

EXPERIMENT = small(
    "training.local_epochs=2",
    "training.optimiser.weight_decay=0.001",
    "training.lps_rounds_per_global_round=3",
    "training.global_rounds=2",
    "training.optimiser.schedule.decay=0.5",
)


@pytest.fixture(scope="module")
def record(folder: Path) -> RunRecord:
    return run_in_process(EXPERIMENT, folder / "run")


def test_a_run_of_two_clusters_equals_a_plain_pytorch_loop(record: RunRecord) -> None:
    clusters = {name: [int(d[-3:]) for d in devices] for name, devices in record.summary.clusters.items()}
    assert sorted(len(devices) for devices in clusters.values()) == [2, 3]
    expected = hierarchical_fed_avg(EXPERIMENT, clusters)
    for name, weights in expected.items():
        found = load_file(record.folder / "models" / f"{name}.safetensors")
        for tensor in (*SHARED, *HEAD):
            assert np.abs(found[tensor] - weights[tensor]).max() < 1e-6, (name, tensor)


def test_the_shared_layers_are_one_and_the_heads_are_each_clusters_own(record: RunRecord) -> None:
    first, second = (load_file(path) for path in sorted((record.folder / "models").iterdir()))
    for tensor in SHARED:
        assert np.array_equal(first[tensor], second[tensor])
    for tensor in HEAD:
        assert np.abs(first[tensor] - second[tensor]).max() > 0.01


def test_relevance_equals_its_formulas_computed_from_the_gram_matrices(record: RunRecord) -> None:
    grams = [gram_matrix(EXPERIMENT, index) for index in range(EXPERIMENT.device_count)]
    expected = relevance_by_formulas(grams, k=EXPERIMENT.method.eigenvectors)
    assert record.relevance is not None
    assert record.relevance.ids == tuple(EXPERIMENT.device_ids())
    assert np.abs(record.relevance.matrix - expected).max() < 1e-5
    assert len(np.unique(expected.round(6))) == 11  # ten pairs and the diagonal: no accident of equal numbers


# --- the plain loop -------------------------------------------------------------------------------


def hierarchical_fed_avg(experiment: Experiment, clusters: dict[str, list[int]]) -> dict[str, Weights]:
    """Every cluster's final weights, by one loop over rounds, clusters and devices."""
    training, start = experiment.training, initial_weights(experiment)
    models = dict.fromkeys(clusters, start)
    size_of = {d: len(device_data(experiment, DATASET, d).train) for devices in clusters.values() for d in devices}
    for global_round in range(training.global_rounds):
        for cluster, devices in clusters.items():
            for local in range(training.lps_rounds_per_global_round):
                lps_round = global_round * training.lps_rounds_per_global_round + local
                trained = [trained_by(experiment, d, models[cluster], lps_round, global_round) for d in devices]
                models[cluster] = weighted_mean(trained, [size_of[d] for d in devices])
        examples = [sum(size_of[d] for d in devices) for devices in clusters.values()]
        shared = weighted_mean([{name: models[c][name] for name in SHARED} for c in clusters], examples)
        models = {cluster: {**weights, **shared} for cluster, weights in models.items()}
    return models


# --- the formulas ---------------------------------------------------------------------------------


def gram_matrix(experiment: Experiment, device: int) -> NDArray[np.float64]:
    """G = AᵀA / n."""
    features = device_data(experiment, DATASET, device).train.inputs.reshape(-1, 64).astype(np.float64)
    return features.T @ features / len(features)


def relevance_by_formulas(grams: list[NDArray[np.float64]], *, k: int) -> NDArray[np.float64]:
    """R by Eq. 1 to 5, with eigenvectors as float32, as they travel."""
    spectra = [np.linalg.eigh(gram) for gram in grams]
    values = [np.sort(spectrum.eigenvalues)[::-1][:k] for spectrum in spectra]
    profiles = [spectrum.eigenvectors[:, ::-1][:, :k].astype(np.float32) for spectrum in spectra]
    rows = np.ones((len(grams), len(grams)))
    for i, gram in enumerate(grams):
        for j, profile in enumerate(profiles):
            if i != j:
                estimated = np.linalg.norm(gram @ profile, axis=0)
                ratios = np.minimum(values[i], estimated) / np.maximum(values[i], estimated)
                rows[i, j] = np.prod(ratios) ** (1 / k)
    return (rows + rows.T) / 2
