"""Agreement of landmark relevance with exact relevance: 200 devices on Fashion-MNIST, one class a task.

`python benchmarks/landmarks.py [--devices 200] [--landmarks 64] [--minority 0.1]` needs the data set and no network.
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np
from sklearn.metrics import adjusted_rand_score

from fedstrata.datasets import load_dataset
from fedstrata.experiment import Experiment, parse_experiment
from fedstrata.features import feature_map
from fedstrata.methods import Candidate, Grouping, make_method
from fedstrata.partitions import device_data
from fedstrata.relevance import Matrix, landmarks, relevance, relevance_matrix, spectrum_of

CLASSES = 10


def experiment(devices: int, count: int, minority: float) -> Experiment:
    """One class a task, 60 examples a device."""
    tasks = "".join(
        f"    - {{name: class{label}, labels: [{label}], devices: {devices // CLASSES}, examples_per_device: 60}}\n"
        for label in range(CLASSES)
    )
    return parse_experiment(
        f"name: landmarks\ndata: {{name: fashion-mnist}}\npartition:\n  kind: tasks\n  minority_ratio: {minority}\n"
        f"  tasks:\n{tasks}method: {{name: one_shot, clusters: {CLASSES}, eigenvectors: 5, landmarks: {count}}}\n"
    )


def rows_of(settings: Experiment) -> Matrix:
    """r(i, j) of all pairs, shape (N, N)."""
    dataset, features = load_dataset(settings.data), feature_map(settings.method)
    spectra = [
        spectrum_of(features(device_data(settings, dataset, index).train.inputs))
        for index in range(settings.device_count)
    ]
    k = settings.method.eigenvectors
    profiles = [spectrum.profile(k) for spectrum in spectra]
    return np.array([[relevance(own, other, k=k) for other in profiles] for own in spectra])


def grouped(settings: Experiment, rows: Matrix, known: Sequence[int]) -> list[int]:
    """The cluster of each device when all are related to the `known` ones only."""
    method = make_method(settings.method)
    candidates = [Candidate(device_index=index, num_examples=60, true_task=None) for index in known]
    grouping: Grouping = method.group(candidates, relevance_matrix(rows[np.ix_(known, known)]), settings.seed)
    others = [index for index in range(len(rows)) if index not in known]
    if others:
        grouping = grouping.joined_by({i: {j: rows[i, j] for j in known} for i in others}, method.place)
    cluster = {index: number for number, members in enumerate(grouping.clusters) for index in members}
    return [cluster[index] for index in range(len(rows))]


def main() -> None:
    """Print the adjusted Rand indexes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--landmarks", type=int, default=64)
    parser.add_argument("--minority", type=float, default=0.1)
    options = parser.parse_args()
    settings = experiment(options.devices, options.landmarks, options.minority)
    started = time.perf_counter()
    rows = rows_of(settings)
    truth = settings.task_of_devices()
    exact = grouped(settings, rows, list(range(len(rows))))
    print(f"{len(rows)} devices, minority {options.minority}, all pairs in {time.perf_counter() - started:.1f} s")
    print(f"exact against the true tasks: ARI {adjusted_rand_score(truth, exact):.3f}")
    for seed in range(5):
        known = landmarks(len(rows), seed, exact_up_to=0, count=options.landmarks)
        near = grouped(settings, rows, known)
        print(
            f"{options.landmarks} landmarks, draw {seed}: ARI {adjusted_rand_score(exact, near):.3f} against exact, "
            f"{adjusted_rand_score(truth, near):.3f} against the true tasks"
        )


if __name__ == "__main__":
    main()
