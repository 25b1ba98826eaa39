"""The drawing of a relevance matrix on the page: its dendrogram, and the matrix in the order of the dendrogram."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_CELLS = 500  # largest number of cells along a side; of a larger matrix, means of neighbouring cells are drawn
Segment = tuple[float, float, float, float]  # a line from (height, leaf) to (height, leaf)


class Tree(NamedTuple):
    """Hold the dendrogram of 1 − R by average linkage, for a relevance matrix R: leaves from top to bottom, line
    segments, merge heights.
    """

    order: list[int]
    branches: list[Segment]
    heights: list[float]


def tree_of(matrix: NDArray[np.float64]) -> Tree:
    """Return the dendrogram of a relevance matrix. The vertical position of the leaf `order[i]` is i + 0.5."""
    count = len(matrix)
    if count < 2:
        return Tree(list(range(count)), [], [])
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    distance = np.clip(1 - (matrix + matrix.T) / 2, 0, None)
    np.fill_diagonal(distance, 0)
    merges = linkage(squareform(distance, checks=False), method="average")
    order = _leaves([(int(a), int(b)) for a, b in merges[:, :2]])
    place = {leaf: (0.0, row + 0.5) for row, leaf in enumerate(order)}
    branches: list[Segment] = []
    for node, (a, b, height, _) in enumerate(merges, start=count):
        (x_a, y_a), (x_b, y_b) = place[int(a)], place[int(b)]
        branches += [(x_a, y_a, height, y_a), (x_b, y_b, height, y_b), (height, y_a, height, y_b)]
        place[node] = (float(height), (y_a + y_b) / 2)
    return Tree(order, branches, [float(height) for height in merges[:, 2]])


def _leaves(merges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the leaves from top to bottom. Of two branches, the branch with the lowest device index comes first."""
    below = [[leaf] for leaf in range(len(merges) + 1)]
    for a, b in merges:
        upper, lower = sorted((below[a], below[b]), key=min)
        below.append(upper + lower)
    return below[-1]


def mean_relevance(
    matrix: NDArray[np.float64], ids: Sequence[str], cluster_of: Mapping[str, str]
) -> tuple[float | None, float | None]:
    """Return the mean relevance of two devices in the same cluster, and of two devices in different clusters. If there
    are no such pairs of devices, the mean is None.
    """
    clusters = np.array([cluster_of.get(device, "") for device in ids])
    placed = clusters != ""
    same = clusters[:, None] == clusters[None, :]
    pairs = np.triu(placed[:, None] & placed[None, :], k=1)
    within, between = matrix[pairs & same], matrix[pairs & ~same]
    return (float(within.mean()) if within.size else None, float(between.mean()) if between.size else None)


def relevance_part(
    matrix: NDArray[np.float64], ids: Sequence[str], clusters: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return the part of the page's document that shows a relevance matrix. `cells` are bytes from 0 to 255, row by
    row, in base64.
    """
    tree = tree_of(matrix)
    blocks, side = _in_blocks(matrix[np.ix_(tree.order, tree.order)])
    cells = np.rint(255 * np.clip(blocks, 0, 1)).astype(np.uint8)
    cluster_of = {device: name for name, devices in clusters.items() for device in devices}
    within, between = mean_relevance(matrix, ids, cluster_of)
    return {
        "ids": [ids[leaf] for leaf in tree.order],
        "branches": [[round(float(at), 5) for at in branch] for branch in tree.branches],
        "cut": _cut(tree.heights, len(clusters)),
        "block": side,
        "cells": b64encode(cells.tobytes()).decode(),
        "within": within,
        "between": between,
    }


def _cut(heights: Sequence[float], clusters: int) -> float | None:
    """Return the height at which a cut through the dendrogram gives this number of clusters. If there is no such
    height, return None.
    """
    if not 1 < clusters <= len(heights):
        return None
    return (heights[-clusters + 1] + heights[-clusters]) / 2


def _in_blocks(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """Return the means of square blocks of a matrix, with at most MAX_CELLS blocks per side, and the number of rows per
    block.
    """
    count = len(matrix)
    side = max(1, -(-count // MAX_CELLS))
    edges = np.arange(0, count, side)
    sizes = np.diff([*edges, count])
    sums = np.add.reduceat(np.add.reduceat(matrix, edges, axis=0), edges, axis=1)
    return sums / np.outer(sizes, sizes), side
