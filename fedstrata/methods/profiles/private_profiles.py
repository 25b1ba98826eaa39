"""Profiles under local differential privacy: a device adds noise to its Gram matrix, then computes eigenvectors of the
noised matrix.

Source: Dwork, Talwar, Thakurta, Zhang, Analyze Gauss: Optimal Bounds for Privacy-Preserving Principal Component
Analysis, STOC 2014, Algorithm 1. The standard deviation of the noise follows from ε and δ by the method of Balle &
Wang, ICML 2018, which is exact for every ε. A device computes all its answers before training from the noised matrix
only. So one ε covers all these answers.
"""

import math

import numpy as np

from fedstrata.errors import ExperimentError
from fedstrata.experiment.privacy import ProfilePrivacy
from fedstrata.methods.profiles.relevance import Matrix, Spectrum
from fedstrata.noise import BEFORE_TRAINING, Noise, noise_multiplier_of, on_grid

GRID = 2.0**40  # entries of the Gram matrix are rounded to multiples of 1 / GRID
ROUNDING = 1e-9  # a row clipped to length one may be longer by this, because float64 rounds


def private_spectrum(features: Matrix, settings: ProfilePrivacy, noise: Noise) -> Spectrum:
    """Add noise to the Gram matrix of features (n, d), and return the spectrum of the noised matrix. It has d
    eigenvalues of at least 0, and their eigenvectors.

    Raises:
        ExperimentError: there are fewer rows than `min_examples`.
    """
    check_enough(len(features), settings, "this device has")
    counts = np.rint(_gram(features, settings.clip) * GRID).astype(np.int64)
    places = np.triu_indices(len(counts))
    upper = counts[places]
    key = noise.key(BEFORE_TRAINING, upper.tobytes())
    upper = upper + on_grid(key, len(upper), noise_deviation(settings, *features.shape), GRID)
    noised = np.zeros(counts.shape)
    noised[places] = upper / GRID
    noised.T[places] = noised[places]
    values, vectors = np.linalg.eigh(noised)
    return Spectrum(eigenvalues=np.maximum(values[::-1], 0.0) * settings.clip**2, eigenvectors=vectors.T[::-1])


def noise_deviation(settings: ProfilePrivacy, examples: int, dim: int) -> float:
    """Return the standard deviation of the noise on each entry of AᵀA / n, for rows of length at most one.

    If one row is replaced by another, the matrix changes by ‖xxᵀ − yyᵀ‖_F / n ≤ √2 / n. Rounding to a grid of `GRID`
    steps per unit changes the d × d matrix by at most d / `GRID` more. Noise is drawn only for the upper triangle,
    because the matrix is symmetric. The norm of the triangle is at most the norm of the matrix.
    """
    sensitivity = (1 + ROUNDING) * math.sqrt(2) / examples + dim / GRID
    return noise_multiplier_of(settings.epsilon, settings.delta) * sensitivity


def check_enough(examples: int, settings: ProfilePrivacy, which: str) -> None:
    """Raise ExperimentError for fewer examples than `min_examples`. In the message, the text `which` precedes the
    number of examples.
    """
    if examples < settings.min_examples:
        raise ExperimentError(
            f"privacy.profiles: a device needs {settings.min_examples} examples (min_examples), but {which} "
            f"{examples}: a profile of few examples reveals them, or its noise hides everything; give each device "
            "more examples, or lower min_examples"
        )


def _gram(features: Matrix, clip: float) -> Matrix:
    """Return AᵀA / n, shape (d, d). The rows of A are the features, divided by `clip`. Rows that are then longer than
    one are shortened to length one.
    """
    rows = features / clip
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.maximum(lengths, 1.0)
    gram: Matrix = rows.T @ rows / len(rows)
    return gram
