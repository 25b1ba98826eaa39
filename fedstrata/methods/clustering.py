"""Functions for methods that cluster devices by a matrix of similarities. They find the number of clusters and cut the
dendrogram.
"""

from collections.abc import Mapping, Sequence
from heapq import heappush, heappushpop
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedstrata.errors import ExperimentError
from fedstrata.experiment.sections import MethodSettings
from fedstrata.methods.base import Candidate, Channel, Facts, Matrix, Method, Reach, all_layers
from fedstrata.models import Model

# If the mean relevance is at least 0.8 even between the last two groups that are merged, all devices learn one task.
ONE_CLUSTER_BELOW = 0.2


class ClusterOptions(MethodSettings):
    """Hold the number of clusters. With `auto` the method finds the number from the data."""

    clusters: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """Number of clusters, at most as many as devices, or `auto`: the method decides."""

    @property
    def given(self) -> int | None:
        """The number of clusters in the options; None if they give none."""
        return None if self.clusters == "auto" else self.clusters


class Grouping(Method):
    """Define the base class of methods that group devices once. The number of clusters is in the options, or the data
    decide it.
    """

    def check(self) -> None:
        """Raise ExperimentError for more clusters than devices."""
        check_clusters(self.options.clusters, self.facts)

    @property
    def clusters_known(self) -> int:
        """The number of clusters in the options; 0 if the data decide it."""
        return self.options.given or 0

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return one channel: the whole model, averaged in each cluster."""
        return all_layers(model, Reach.CLUSTER)


def check_clusters(clusters: int | str, facts: Facts, threshold: float | None = None) -> None:
    """Raise ExperimentError for more clusters than devices, or for a threshold together with a number of clusters."""
    if isinstance(clusters, int) and clusters > facts.device_count:
        raise ExperimentError(f"method.clusters is {clusters}, more than the {facts.device_count} devices; lower it")
    if threshold is not None and clusters != "auto":
        raise ExperimentError("method.threshold decides the number of clusters; remove method.clusters")


def lower_median(values: NDArray[np.float64]) -> float:
    """Return the median of values, one per device. Of two middle values, return the lower.

    If most devices are honest, the result is at most the largest value of an honest device.
    """
    return float(np.sort(values)[(len(values) - 1) // 2])


def merge_heights(affinity: Matrix) -> Matrix:
    """Return the N − 1 heights, ascending, at which average linkage of the distances 1 − affinity merges clusters."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    if len(affinity) < 2:
        return np.zeros(0)
    heights: Matrix = linkage(squareform(1.0 - affinity, checks=False), "average")[:, 2]
    return heights


def clusters_in_dendrogram(heights: Matrix) -> tuple[int, str]:
    """Find the number of clusters by the widest gap between successive merge heights. Return the number, and a text
    with the reason.

    For N devices, let h_0 = 0, and let h_1 ≤ … ≤ h_(N−1) be the merge heights. T clusters, with T from 2 to N, belong
    to the gap h_(N−T+1) − h_(N−T). The T with the largest gap is chosen, or the smallest such T. If the height of the
    last merge is below 0.2, all devices form one cluster instead.
    """
    devices = len(heights) + 1
    if devices == 1 or heights[-1] < ONE_CLUSTER_BELOW:
        return 1, f"auto: every merge is below {ONE_CLUSTER_BELOW}, one cluster"
    gaps = np.diff(heights, prepend=0.0)[::-1]  # gaps[0] belongs to two clusters
    count = int(np.argmax(gaps)) + 2
    return count, f"auto: {count}, at the dendrogram's widest gap ({gaps[count - 2]:.3f})"


def outlying(affinity: Matrix) -> list[int]:
    """Return the row numbers, ascending, of devices that resemble no other device, and that hide groups among the other
    devices.

    A device that resembles no other device can cause the widest gap between merge heights. A cut at this gap makes this
    device a cluster of its own, and all other devices one large cluster. The large cluster may still consist of groups:
    this is assumed if its own merge heights have a gap of at least 0.2. Then the device is part of the result, and the
    same test is repeated with only the devices of the large cluster.
    """
    there = np.arange(len(affinity))
    while len(there) > 2:
        here = affinity[np.ix_(there, there)]
        labels = np.asarray(cut(1.0 - here, clusters_in_dendrogram(merge_heights(here))[0]))
        sizes = np.bincount(labels)
        if len(sizes) == 1 or np.count_nonzero(sizes > 1) != 1:
            break
        rest = there[sizes[labels] > 1]
        if np.diff(merge_heights(affinity[np.ix_(rest, rest)]), prepend=0.0).max() < ONE_CLUSTER_BELOW:
            break
        there = rest
    return sorted(set(range(len(affinity))) - set(there.tolist()))


def grouped_by(
    affinity: Matrix, devices: Sequence[Candidate], clusters: int | None, *, sets_apart: bool = False
) -> tuple[list[list[int]], str]:
    """Cluster devices. Return the clusters as lists of device indexes, and a text that says how their number was found.

    Clustering is agglomerative, by average linkage of the distances 1 − affinity. `affinity` has shape (N, N), in the
    order of `devices`. If `clusters` is None, the dendrogram decides the number of clusters. If `sets_apart` is
    also set, each device of `outlying` becomes a cluster of its own, and the dendrogram is computed without them.
    """
    if clusters is None:
        if sets_apart and (apart := outlying(affinity)):
            return _grouped_without(apart, affinity, devices)
        count, rule = clusters_in_dendrogram(merge_heights(affinity))
    else:
        count, rule = min(clusters, len(affinity)), f"{clusters} as given"
    labels = cut(1.0 - affinity, count)
    indexes = [device.device_index for device in devices]
    return [[i for i, label in zip(indexes, labels, strict=True) if label == one] for one in range(count)], rule


def _grouped_without(
    apart: Sequence[int], affinity: Matrix, devices: Sequence[Candidate]
) -> tuple[list[list[int]], str]:
    """Group the devices as `grouped_by` does, but without the devices in the rows `apart`. Each of these devices
    becomes a cluster of its own.
    """
    rest = [place for place in range(len(affinity)) if place not in apart]
    clusters, rule = grouped_by(affinity[np.ix_(rest, rest)], [devices[place] for place in rest], None)
    alone = [[devices[place].device_index] for place in apart]
    return clusters + alone, f"{rule}; {len(apart)} set apart before"


def grouped_within(affinity: Matrix, devices: Sequence[Candidate], height: float) -> list[list[int]]:
    """Cluster devices by average linkage, and return the clusters as lists of device indexes. Two clusters are joined
    only if their mean distance 1 − affinity is at most `height`.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    indexes = [device.device_index for device in devices]
    if len(indexes) == 1:
        return [indexes]
    labels = fcluster(linkage(squareform(1.0 - affinity, checks=False), "average"), height, "distance")
    return [[i for i, label in zip(indexes, labels, strict=True) if label == one] for one in np.unique(labels)]


def closest(likeness: Mapping[int, float], groups: Sequence[Sequence[int]]) -> int:
    """Return the number of the group that resembles a device most on average. If several groups resemble it equally,
    return the first.

    `likeness` has the device's similarity to other devices, by their index. Members of a group that are missing in
    `likeness` are ignored. If all members of a group are missing, the mean of the group is 0.
    """
    means = [float(np.mean([likeness[index] for index in group if index in likeness] or [0.0])) for group in groups]
    return means.index(max(means))


def cut(distances: Matrix, count: int, linkage: str = "average") -> Sequence[int]:
    """Divide N points into `count` agglomerative clusters. Return the number of each point's cluster, from 0.
    `distances` has shape (N, N).

    The result is the same as with scikit-learn's AgglomerativeClustering, which costs a GPS 2 s and 130 MB to import.
    """
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    points = len(distances)
    if count == 1:
        return [0] * points
    merges = hierarchy.linkage(squareform(distances, checks=False), linkage)
    roots = [2 - 2 * points]  # a heap of negative nodes: the last merge is the first to be undone
    for _ in range(count - 1):
        left, right = merges[-roots[0] - points, :2].astype(int).tolist()
        heappush(roots, -left)
        heappushpop(roots, -right)
    nodes = hierarchy.to_tree(merges, rd=True)[1]
    labels = [0] * points
    for label, root in enumerate(roots):
        for point in nodes[-root].pre_order():
            labels[point] = label
    return labels
