"""Agreement of landmark relevance with exact relevance: 200 devices on Fashion-MNIST, one class a task.

`python -m benchmarks.landmarks [--devices 200] [--landmarks 64] [--minority 0.1]` needs the data set and no network.
"""

import argparse
import time
from dataclasses import replace

import numpy as np
from sklearn.metrics import adjusted_rand_score

from fedstrata.datasets import load_dataset
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Answers, Candidate, Moment, method_of
from fedstrata.methods.one_shot import RELEVANCE, OneShot
from fedstrata.methods.profiles.features import feature_map
from fedstrata.methods.profiles.relevance import Matrix, relevance, spectrum_of
from fedstrata.methods.registry import facts_of
from fedstrata.partitions import device_data

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


def options_of(settings: Experiment) -> OneShot.Options:
    """The method's own options."""
    return OneShot.Options.model_validate(settings.method.model_dump())


def rows_of(settings: Experiment) -> Matrix:
    """r(i, j) of all pairs, shape (N, N)."""
    dataset, options = load_dataset(settings.data), options_of(settings)
    features, k = feature_map(options), options.eigenvectors
    spectra = [
        spectrum_of(features(device_data(settings, dataset, index).train.inputs))
        for index in range(settings.device_count)
    ]
    profiles = [spectrum.profile(k) for spectrum in spectra]
    return np.array([[relevance(own, other, k=k) for other in profiles] for own in spectra])


def grouped(settings: Experiment, rows: Matrix, seed: int, exact_up_to: int) -> list[int]:
    """The cluster of each device where, above so many devices, all are related to the landmarks of a seed only."""
    options = options_of(settings).model_copy(update={"exact_up_to": exact_up_to})
    method = method_of(options, replace(facts_of(settings), seed=seed))
    known = np.array(method.relays(), np.int64)
    answers = {index: {"devices": known, "values": row[known]} for index, row in enumerate(rows)}
    candidates = [Candidate(device_index=index, num_examples=60) for index in range(len(rows))]
    plan = method.plan(Moment.BEFORE, Answers(candidates, {RELEVANCE: answers}), None)
    return [plan.cluster_of(index) for index in range(len(rows))]


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
    exact = grouped(settings, rows, 0, exact_up_to=len(rows))
    print(f"{len(rows)} devices, minority {options.minority}, all pairs in {time.perf_counter() - started:.1f} s")
    print(f"exact against the true tasks: ARI {adjusted_rand_score(truth, exact):.3f}")
    for seed in range(5):
        near = grouped(settings, rows, seed, exact_up_to=1)
        print(
            f"{options.landmarks} landmarks, draw {seed}: ARI {adjusted_rand_score(exact, near):.3f} against exact, "
            f"{adjusted_rand_score(truth, near):.3f} against the true tasks"
        )


if __name__ == "__main__":
    main()
