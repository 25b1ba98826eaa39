"""How devices are grouped by what their models say of the same examples: statistics of outputs, and DBSCAN."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.methods.base import Matrix

NEITHER = 0.5  # of the Hopkins statistic where all points are the same


def softmax(logits: NDArray[Any]) -> Matrix:
    """Return the distribution over classes of logits (n, classes), in float64."""
    wide = logits.astype(np.float64)
    raised = np.exp(wide - wide.max(axis=1, keepdims=True))
    shares: Matrix = raised / raised.sum(axis=1, keepdims=True)
    return shares


def hopkins(points: Matrix, count: int, rng: np.random.Generator) -> float:
    """Return the Hopkins statistic of points (n, d), below 1/2 where they are evenly spread and towards 1 where in
    groups.

    Of `count` points drawn evenly from the smallest box around all, and of `count` of the points themselves, the
    distances to the nearest (other) point are summed up; it is the former's share of both.
    """
    from scipy.spatial.distance import cdist

    drawn = rng.choice(len(points), count, replace=False)
    even = rng.uniform(points.min(axis=0), points.max(axis=0), (count, points.shape[1]))
    between = cdist(points[drawn], points)
    between[np.arange(count), drawn] = np.inf
    own, others = between.min(axis=1).sum(), cdist(even, points).min(axis=1).sum()
    return float(others / (others + own)) if others + own else NEITHER


def jensen_shannon(outputs: Matrix) -> Matrix:
    """Jensen-Shannon divergences between outputs (n, batch, classes) in nats, means over the batch, shape (n, n)."""
    from scipy.special import rel_entr

    divergences = np.zeros((len(outputs), len(outputs)))
    for place, one in enumerate(outputs):  # row by row: all pairs at once would be n times the memory
        middle = (one + outputs) / 2
        both = rel_entr(one[None], middle).sum(axis=2) + rel_entr(outputs, middle).sum(axis=2)
        divergences[place] = both.mean(axis=1) / 2
    np.fill_diagonal(divergences, 0.0)
    divergences = (divergences + divergences.T) / 2
    return np.maximum(divergences, 0.0)


def groups_within(distances: Matrix, radius: float, neighbours: int) -> list[NDArray[np.int64]]:
    """DBSCAN of points with distances (n, n): their places by group; a point in no group is one of its own."""
    from sklearn.cluster import DBSCAN

    labels = DBSCAN(eps=radius, min_samples=neighbours, metric="precomputed").fit_predict(distances)
    groups = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]
    return groups + [np.array([place]) for place in np.flatnonzero(labels < 0)]
