"""One-shot eigen-relevance clustering for multi-task hierarchical federated learning.

Source: Ali & Arafa, Algorithm 2. Devices share eigenvectors once; the GPS clusters 1 − R agglomeratively with
average linkage. Where the number of clusters is not given it is read off the dendrogram.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedstrata.methods.base import Candidate, FedAvg, Grouping
from fedstrata.relevance import Matrix

# Devices that are at least 0.8 relevant to each other on average, all of them, learn one task.
ONE_CLUSTER_BELOW = 0.2


@dataclass(frozen=True, kw_only=True)
class OneShot(FedAvg):
    """Clusters from relevance; `clusters` None chooses their number by `clusters_in_dendrogram`."""

    clusters: int | None = None
    needs_profiles: bool = field(default=True, init=False)

    def group(self, candidates: Sequence[Candidate], relevance: Matrix | None, seed: int) -> Grouping:
        """Hierarchical clustering of 1 − R, average linkage, cut into T clusters."""
        if relevance is None:
            raise ValueError("one_shot groups by relevance")
        count, rule = self._count(relevance)
        return Grouping.ordered(_cut(candidates, relevance, count), rule)

    def _count(self, relevance: Matrix) -> tuple[int, str]:
        if self.clusters is not None:
            return min(self.clusters, len(relevance)), f"{self.clusters} as given"
        heights = merge_heights(relevance)
        return clusters_in_dendrogram(heights)


def merge_heights(relevance: Matrix) -> Matrix:
    """Heights of the N − 1 merges of 1 − R under average linkage, ascending."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    if len(relevance) < 2:
        return np.zeros(0)
    heights: Matrix = linkage(squareform(1.0 - relevance, checks=False), "average")[:, 2]
    return heights


def clusters_in_dendrogram(heights: Matrix) -> tuple[int, str]:
    """The number of clusters where the gap between successive merge heights is widest, and why.

    With heights h_1 ≤ … ≤ h_(N−1) and h_0 = 0, T is the number from 2 to N whose gap h_(N−T+1) − h_(N−T) is
    largest; among equals the smallest T. When even the last merge is below 0.2 all devices form one cluster.
    """
    devices = len(heights) + 1
    if devices == 1 or heights[-1] < ONE_CLUSTER_BELOW:
        return 1, f"auto: every merge is below {ONE_CLUSTER_BELOW}, one cluster"
    gaps = np.diff(heights, prepend=0.0)[::-1]  # gaps[0] is that of T = 2
    count = int(np.argmax(gaps)) + 2
    return count, f"auto: {count}, at the dendrogram's widest gap ({gaps[count - 2]:.3f})"


def _cut(candidates: Sequence[Candidate], relevance: Matrix, count: int) -> list[list[int]]:
    from sklearn.cluster import AgglomerativeClustering

    if count == 1:
        return [[candidate.device_index for candidate in candidates]]
    clustering = AgglomerativeClustering(n_clusters=count, metric="precomputed", linkage="average")
    labels = clustering.fit_predict(1.0 - relevance)
    return [
        [candidate.device_index for candidate, label in zip(candidates, labels, strict=True) if label == cluster]
        for cluster in range(count)
    ]
