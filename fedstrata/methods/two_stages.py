"""Group devices by the outputs of their models on the same examples: statistics of the outputs, and DBSCAN."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.methods.base import Matrix

NEITHER = 0.5  # value of the Hopkins statistic if all points are equal


def softmax(logits: NDArray[Any]) -> Matrix:
    """Return the probabilities of classes, in float64, from logits (n, classes)."""
    wide = logits.astype(np.float64)
    raised = np.exp(wide - wide.max(axis=1, keepdims=True))
    shares: Matrix = raised / raised.sum(axis=1, keepdims=True)
    return shares


def hopkins(points: Matrix, count: int, rng: np.random.Generator) -> float:
    """Return the Hopkins statistic of points (n, d). It is below 1/2 if the points are evenly spaced, and near 1 if
    they form groups.

    The statistic compares two sums of distances to the nearest point. The first sum is over `count` random positions in
    the smallest box around all points. The second is over `count` of the points, each to its nearest other point. The
    result is the first sum divided by the total of both.
    """
    from scipy.spatial.distance import cdist

    drawn = rng.choice(len(points), count, replace=False)
    even = rng.uniform(points.min(axis=0), points.max(axis=0), (count, points.shape[1]))
    between = cdist(points[drawn], points)
    between[np.arange(count), drawn] = np.inf
    own, others = between.min(axis=1).sum(), cdist(even, points).min(axis=1).sum()
    return float(others / (others + own)) if others + own else NEITHER


def jensen_shannon(outputs: Matrix) -> Matrix:
    """Return the Jensen-Shannon divergence, in nats, between the outputs of each pair of devices, averaged over
    examples. `outputs` has shape (n, batch, classes), and the result (n, n).
    """
    from scipy.special import rel_entr

    divergences = np.zeros((len(outputs), len(outputs)))
    for place, one in enumerate(outputs):  # row by row, because all pairs at once need n times the memory
        middle = (one + outputs) / 2
        both = rel_entr(one[None], middle).sum(axis=2) + rel_entr(outputs, middle).sum(axis=2)
        divergences[place] = both.mean(axis=1) / 2
    np.fill_diagonal(divergences, 0.0)
    divergences = (divergences + divergences.T) / 2
    return np.maximum(divergences, 0.0)


def groups_within(distances: Matrix, radius: float, neighbours: int) -> list[NDArray[np.int64]]:
    """Group points by DBSCAN, and return each group as the row numbers of its points. `distances` has shape (n, n). A
    group grows from points that have at least `neighbours` points, including themselves, within `radius`. A point
    outside all groups becomes a group of its own.
    """
    from sklearn.cluster import DBSCAN

    labels = DBSCAN(eps=radius, min_samples=neighbours, metric="precomputed").fit_predict(distances)
    groups = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]
    return groups + [np.array([place]) for place in np.flatnonzero(labels < 0)]
