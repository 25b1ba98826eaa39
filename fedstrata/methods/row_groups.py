"""Group similar rows of a matrix by k-means. The silhouette can decide the number of groups."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedstrata.methods.base import Matrix

RANDOM_STATE = 0x5EED  # seed of k-means, so that every run groups the same rows alike
STARTS = 10  # number of times that k-means starts; the best result is used
SMALLEST = 3  # least number of rows for which silhouettes can choose the number of groups


def row_groups(rows: Matrix, count: int | Literal["auto", "all"], most: int) -> tuple[list[list[int]], str]:
    """Group the rows. Return the groups as lists of row numbers, ordered by their first row, and a text that says how
    their number was found.

    `count` is a number of groups, `all` (one group per row) or `auto`. `auto` chooses the number from 2 to `most` that
    gives the highest mean silhouette. If several numbers give the same silhouette, the smallest is chosen.
    Bit-identical rows are always in the same group, so there may be fewer groups than asked for.
    """
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    if count == "auto":
        labels, rule = _by_silhouette(rows, len(distinct), most)
    else:
        wanted = len(rows) if count == "all" else count
        labels = which.reshape(-1) if wanted >= len(distinct) else k_means(rows, wanted)
        rule = "one stream a device" if count == "all" else f"{count} streams as given, by k-means"
    return sorted(np.flatnonzero(labels == label).tolist() for label in np.unique(labels)), rule


def k_means(rows: Matrix, count: int) -> NDArray[Any]:
    """Divide rows into `count` groups by k-means, and return the number of each row's group. Only one thread is used.
    Several threads could add numbers in another order, so results could differ in their last bits.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        labels: NDArray[Any] = KMeans(count, n_init=STARTS, random_state=RANDOM_STATE).fit_predict(rows)
    return labels


def _by_silhouette(rows: Matrix, distinct: int, most: int) -> tuple[NDArray[Any], str]:
    from sklearn.metrics import silhouette_score

    if distinct == 1 or len(rows) < SMALLEST:
        return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1), "auto: too few rows that differ"
    tried = [k_means(rows, number) for number in range(2, min(most, distinct, len(rows) - 1) + 1)]
    scores = [float(silhouette_score(rows, labels)) for labels in tried]
    best = int(np.argmax(scores))
    return tried[best], f"auto: {best + 2} streams, by the highest silhouette ({scores[best]:.3f})"
