"""Groups of similar rows of a matrix: k-means, with the number of groups by silhouette."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedstrata.methods.base import Matrix

RANDOM_STATE = 0x5EED  # of k-means' own draws: the same rows are grouped alike in every run
STARTS = 10  # of k-means; the best of them counts
SMALLEST = 3  # rows of which a silhouette can be told for some number of groups


def row_groups(rows: Matrix, count: int | Literal["auto", "all"], most: int) -> tuple[list[list[int]], str]:
    """Return groups of rows as lists of row numbers, ordered by their first number, and a text that says how their
    number was found.

    `count` is a number, `all` for one group per row, or `auto` for the number from 2 to `most` with the highest mean
    silhouette, or the smallest such number. Bit-identical rows are always in the same group, so the result may have
    fewer groups.
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
    """Return the number of each row's group by k-means. The function uses one thread, because several threads could add
    sums in a different order.
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
