"""Measure how much label means, and eigenvectors, reveal about single examples and label counts.

`python -m benchmarks.label_attack --figure attack.svg` distinguishes examples of a device from other examples of the
same classes, and prints the area under the ROC curve: 0.5 is guessing, 1 is knowing. The attacker knows the projection,
and the mean and covariance of each label from other examples. Its guess is the likelihood ratio of the answer with and
without the example, for normal features. Eigenvectors are attacked as in `benchmarks.privacy`. The last row has the
mean error of a label's count.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from benchmarks.privacy import CLOTHES, EIGENVECTORS, OTHERS, SEEDS, SIZES, advantage, figure, spectrum
from fedstrata.datasets import load_dataset
from fedstrata.experiment import DataSettings
from fedstrata.experiment.privacy import ProfilePrivacy
from fedstrata.methods.profiles.label_means import label_sums, noise_deviation, noised, projected
from fedstrata.methods.profiles.relevance import Matrix
from fedstrata.noise import ResearchNoise

Labels = NDArray[np.int64]
EXAMPLES, CLASSES = 20000, 10
SETTINGS: Mapping[str, tuple[int, float | None]] = {  # (m, ε)
    "label means, m 64": (64, None),
    "label means, m 16": (16, None),
    "m 64, ε 8": (64, 8.0),
    "m 16, ε 8": (16, 8.0),
}
FLOOR = 1e-6  # added to a covariance, so that it has an inverse


def answer(points: Matrix, labels: Labels, epsilon: float | None, seed: int) -> tuple[Matrix, float]:
    """Return the answer that a device sends, and the deviation of the noise in it."""
    sums = label_sums(points, labels, CLASSES)
    if epsilon is None:
        return sums, 0.0
    settings = ProfilePrivacy(epsilon=epsilon, delta=1e-5, clip=1.0, min_examples=1)
    noise = ResearchNoise(seed, f"a device of {len(points)}")
    return noised(sums, len(points), settings, noise), noise_deviation(settings, sums.shape)


def guesses(sent: Matrix, deviation: float, points: Matrix, labels: Labels, public: tuple[Matrix, Labels]) -> Matrix:
    """Return the logarithm of the likelihood ratio for each candidate, shape (n,)."""
    found = np.empty(len(points))
    for label in np.unique(labels):
        known, there = public[0][public[1] == label], labels == label
        mean, covariance = known.mean(axis=0), np.cov(known.T)
        count = max(float(np.rint(sent[label, -2])), 1.0)
        rest = sent[label, :-2] - count * mean
        noise = (deviation**2 + FLOOR) * np.eye(len(mean))
        without, with_it = count * covariance + noise, (count - 1) * covariance + noise
        less = rest - (points[there] - mean)
        found[there] = (
            rest @ np.linalg.solve(without, rest)
            + np.linalg.slogdet(without)[1]
            - np.sum(less * np.linalg.solve(with_it, less.T).T, axis=1)
            - np.linalg.slogdet(with_it)[1]
        ) / 2
    return found


def attacked(
    rows: Matrix, labels: Labels, sizes: Sequence[int]
) -> tuple[dict[str, dict[int, list[float]]], dict[str, list[float]]]:
    """Return, by kind of answer and size of the device, the area under the ROC curve for each seed. Also return, by
    kind of answer, the errors of label counts.
    """
    eigenvectors = f"{EIGENVECTORS} eigenvectors"
    areas: dict[str, dict[int, list[float]]] = {name: {n: [] for n in sizes} for name in (eigenvectors, *SETTINGS)}
    errors: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for seed in SEEDS:
        order = np.random.default_rng([seed, 0x617474]).permutation(len(rows))
        others, known = order[-OTHERS:], order[max(sizes) : -OTHERS]
        for size in sizes:
            shared = spectrum(rows[order[:size]], None, seed).profile(EIGENVECTORS).astype(np.float64)
            areas[eigenvectors][size].append(advantage(rows[order[:size]], rows[others], shared))
        for name, (width, epsilon) in SETTINGS.items():
            points = projected(rows, width, seed, clip=1.0)
            for size in sizes:
                members = order[:size]
                sent, deviation = answer(points[members], labels[members], epsilon, seed)
                asked = np.concatenate([members, others])
                found = guesses(sent, deviation, points[asked], labels[asked], (points[known], labels[known]))
                areas[name][size].append(float(roc_auc_score([1] * size + [0] * len(others), found)))
                counts = np.bincount(labels[members], minlength=CLASSES)
                errors[name].append(float(np.abs(sent[:, -2] - counts).mean()))
    return areas, errors


def main() -> None:
    """Attack, print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", type=Path, required=True)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=SIZES, help="numbers of examples of the attacked device"
    )
    asked = parser.parse_args()
    train = load_dataset(DataSettings(name="fashion-mnist"), 0).train
    there = np.flatnonzero(np.isin(train.labels, CLOTHES))[:EXAMPLES]
    examples = train.take(there)
    rows = examples.inputs.astype(np.float64).reshape(len(there), -1)
    areas, errors = attacked(rows, examples.labels, asked.sizes)
    print(f"| examples of the device | {' | '.join(areas)} |\n|---:|{'---:|' * len(areas)}")
    for size in asked.sizes:
        row = [f"{fmean(each[size]):.2f} ± {stdev(each[size]):.2f}" for each in areas.values()]
        print(f"| {size} | {' | '.join(row)} |")
    said = [f"{fmean(errors[name]):.1f}" if name in errors else "" for name in areas]
    print(f"| error of a label's count | {' | '.join(said)} |")
    lines: dict[str, dict[float, tuple[float, float]]] = {
        name: {size: (fmean(each), stdev(each)) for size, each in points.items()} for name, points in areas.items()
    }
    figure(lines, asked.figure, across="examples of the device", up="area under the ROC curve", ticks=asked.sizes)


if __name__ == "__main__":
    with threadpool_limits(1):  # as in a device process
        main()
