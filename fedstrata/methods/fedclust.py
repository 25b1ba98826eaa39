"""FedClust: clusters by the last layer after a short local training (Islam et al., ICPP 2024, arXiv 2407.07124).

All devices train some epochs from the same initial weights. Each device sends the last layer w_k of its trained model
to the GPS. The GPS clusters devices hierarchically by the Euclidean distances ‖w_i − w_j‖, up to a threshold λ. A late
device sends its trained last layer in the same way, and joins the cluster with the smallest mean distance. Training is
FedAvg in each cluster.

Departures: λ depends on the data and the model. So the number of clusters may be given, or read from the dendrogram,
instead. The linkage is average linkage. The first round begins with the initial weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedstrata.methods.adaptive import compared
from fedstrata.methods.base import Answers, Arrays, Candidate, Matrix, Moment, Plan, Question, Work
from fedstrata.methods.clustering import ClusterOptions, Grouping, check_clusters, closest, grouped_by, grouped_within
from fedstrata.tensors.layout import taken

LAST = "last_layer"


class FedClust(Grouping):
    """Group devices once by the weights of the last layer after a short local training."""

    class Options(ClusterOptions):
        """Hold the length of the training before devices are compared, and the rule for the number of clusters."""

        pretrain_epochs: int = Field(default=1, ge=1)
        """Epochs of local training before devices are compared."""
        threshold: float | None = Field(default=None, ge=0)
        """Mean distance λ up to which clusters are joined, in place of `clusters`."""

    def check(self) -> None:
        """Raise ExperimentError for more clusters than devices, or for both a threshold and a number of clusters."""
        check_clusters(self.options.clusters, self.facts, self.options.threshold)

    def questions(self) -> Sequence[Question]:
        """Return the question that asks each device for its last layer after local training. Only the GPS reads the
        answers.
        """
        shape = (compared(self.facts.trainable, "last").size,)
        return (Question(name=LAST, moment=Moment.BEFORE, arrays={"weights": ("float32", shape)}),)

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """Train locally from the initial weights, and return the last layer, shape (size of the last layer,)."""
        trained = await work.train(self.initial(work.model, 0), epochs=self.options.pretrain_epochs)
        layout = work.model.trainable
        return {"weights": taken(trained.weights, layout.slices_of(compared(layout, "last")))}

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Cluster the devices by the distances of their last layers, with average linkage. The threshold, the number in
        the options or the dendrogram decides how many clusters there are.
        """
        given = answers.of(LAST)
        vectors = {device.device_index: given[device.device_index]["weights"] for device in answers.devices}
        return grouped_by_distance(vectors, answers.devices, self.options.given, self.options.threshold)

    def place(self, late: Candidate, answers: Answers, plan: Plan) -> int:
        """Return the number of the cluster with the smallest mean distance to the late device."""
        return nearest_cluster(late, {index: each["weights"] for index, each in answers.of(LAST).items()}, plan)


def grouped_by_distance(
    vectors: Mapping[int, NDArray[Any]],
    devices: Sequence[Candidate],
    clusters: int | None,
    threshold: float | None = None,
) -> Plan:
    """Cluster devices by the Euclidean distances of their vectors, with average linkage, and return the plan.

    If `threshold` is given, two clusters are joined only if their mean distance is at most `threshold`. Otherwise
    `clusters` is the number of clusters. If it is None, the dendrogram decides the number, after all distances have
    been divided by the largest distance.
    """
    indexes = tuple(device.device_index for device in devices)
    distances = distances_of([vectors[index] for index in indexes])
    farthest = distances.max() or 1.0
    affinity = 1.0 - distances / farthest
    if threshold is None:
        found, rule = grouped_by(affinity, devices, clusters)
    else:
        found = grouped_within(affinity, devices, threshold / farthest)
        rule = f"{len(found)} at distance {threshold}"
    return Plan.ordered(found, rule, affinity=affinity, related=indexes)


def nearest_cluster(late: Candidate, vectors: Mapping[int, NDArray[Any]], plan: Plan) -> int:
    """Return the number of the cluster with the smallest mean distance to a late device. `vectors` has a vector for
    each device.
    """
    others = [index for index in vectors if index != late.device_index]
    distances = distances_from(vectors[late.device_index], np.stack([vectors[index] for index in others]))
    likeness = 1.0 - distances / (distances.max() or 1.0)
    return closest(dict(zip(others, likeness.tolist(), strict=True)), plan.clusters)


def distances_of(vectors: Sequence[NDArray[Any]]) -> Matrix:
    """Return the Euclidean distances between N vectors, shape (N, N)."""
    stacked = np.stack(vectors)
    distances: Matrix = np.stack([distances_from(one, stacked) for one in stacked])
    return distances


def distances_from(one: NDArray[Any], others: NDArray[Any]) -> Matrix:
    """Return the Euclidean distances from a vector (d,) to N vectors (N, d), in float64, shape (N,)."""
    distances: Matrix = np.linalg.norm(others.astype(np.float64) - one.astype(np.float64), axis=1)
    return distances
