"""Measure how much label means, and eigenvectors, reveal about single examples and label counts.

`python -m benchmarks.label_attack --figure attack.svg` distinguishes examples of a device from other examples of the
same classes, and prints the area under the ROC curve: 0.5 is guessing, 1 is knowing. The attacker knows the projection,
and the mean and covariance of each label from other examples. Its guess is the likelihood ratio of the answer with and
without the example, for normal features. Eigenvectors are attacked as in `benchmarks.privacy`. The last row has the
mean error of a label's count.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from benchmarks import privacy
from benchmarks.privacy import Areas, Labels
from fedstrata.experiment.privacy import ProfilePrivacy
from fedstrata.methods.profiles.label_means import label_sums, noise_deviation, noised, projected
from fedstrata.methods.profiles.relevance import Matrix
from fedstrata.noise import ResearchNoise

CLASSES = 10
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


def attacked(rows: Matrix, labels: Labels, sizes: Sequence[int]) -> tuple[Areas, dict[str, list[float]]]:
    """Return, by kind of answer and size of the device, the area under the ROC curve for each seed. Also return, by
    kind of answer, the errors of label counts.
    """
    areas: dict[str, dict[float, list[float]]] = {name: {n: [] for n in sizes} for name in SETTINGS}
    errors: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for seed in privacy.SEEDS:
        order = np.random.default_rng([seed, 0x617474]).permutation(len(rows))
        others, known = order[-privacy.OTHERS :], order[max(sizes) : -privacy.OTHERS]
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
    [eigenvectors] = privacy.attacked(rows, sizes, [None]).values()
    return {f"{privacy.EIGENVECTORS} eigenvectors": eigenvectors, **areas}, errors


def main() -> None:
    """Attack, print the table and draw the figure."""
    asked = privacy.options_of(__doc__).parse_args()
    areas, errors = attacked(*privacy.clothes(), asked.sizes)
    privacy.show(areas, asked.sizes, asked.figure)
    said = [f"{fmean(errors[name]):.1f}" if name in errors else "" for name in areas]
    print(f"| error of a label's count | {' | '.join(said)} |")


if __name__ == "__main__":
    with threadpool_limits(1):  # as in a device process
        main()
