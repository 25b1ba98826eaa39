"""An audit of the noise on label means: how well the best guess tells apart data sets that differ in one example."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from fedstrata.experiment.privacy import ProfilePrivacy
from fedstrata.methods.profiles.label_means import label_sums, noised
from fedstrata.noise import ResearchNoise

DRAWS, CLASSES, WIDTH = 2000, 10, 16


def sums_with(point: NDArray[np.float64], label: int) -> NDArray[np.float64]:
    """The label sums of 30 examples of which one is this."""
    rng = np.random.default_rng(5)
    points = rng.standard_normal((29, WIDTH))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    labels = np.append(rng.integers(CLASSES, size=29), label)
    return label_sums(np.vstack([points, point]), labels, CLASSES)


def epsilon_found(epsilon: float, delta: float = 1e-5) -> float:
    """A lower bound on ε, right with 90 % confidence, of noise that is made for `epsilon`.

    The example is replaced by the farthest: another label, another point of length one. By Neyman and Pearson the best
    guess compares the answer's part along the difference with a threshold, which the first half of the draws chooses.
    """
    here, there = sums_with(np.eye(WIDTH)[0], 0), sums_with(np.eye(WIDTH)[1], 1)
    along = (there - here).ravel()
    settings = ProfilePrivacy(epsilon=epsilon, delta=delta, clip=1.0, min_examples=1)

    def seen(sums: NDArray[np.float64], offset: int) -> NDArray[np.float64]:
        noises = (ResearchNoise(offset + draw, "device-000") for draw in range(DRAWS))
        return np.array([noised(sums, 30, settings, noise).ravel() @ along for noise in noises])

    without, with_it = seen(here, 0), seen(there, DRAWS)
    half = DRAWS // 2

    def bound(threshold: float, part: slice) -> float:
        false, true = (int((found[part] > threshold).sum()) for found in (without, with_it))
        most_false = binomtest(false, half).proportion_ci(0.9).high
        least_true = binomtest(true, half).proportion_ci(0.9).low
        return math.log(max(least_true - delta, 1e-12) / most_false)

    chosen = max(np.quantile(without, np.linspace(0.5, 0.999, 40)), key=lambda at: bound(at, slice(half)))
    return bound(chosen, slice(half, None))


def test_an_audit_finds_no_more_than_is_claimed() -> None:
    assert epsilon_found(1.0) <= 1.0
    assert 1.0 < epsilon_found(8.0) <= 8.0  # it would find the noise too small if ε 1 were claimed for it
