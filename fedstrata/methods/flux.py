"""Flux clusters devices by means and deviations of their features, over all examples and by label (Fenoglio et al.
2025).

A device describes its data once, by moments of features z. An example has m features. For each feature, the device
sends the mean μ and the standard deviation σ. It computes them over all its examples, P(X), and over the examples of
each label, P(X | Y). Together these numbers are the device's descriptor. The distance of two devices is the Euclidean
distance of their descriptors. For normal distributions with independent features, it is the 2-Wasserstein distance:

    d(i, j)² = Σ ‖μ_i − μ_j‖² + ‖σ_i − σ_j‖² over P(X) and the labels

If a device has fewer than two examples of a label, a constant replaces the moments of this label, as in the authors'
program. Source: Flux: Efficient Descriptor-Driven Clustered Federated Learning under Arbitrary Distribution Shifts,
NeurIPS 2025 (arXiv 2511.22305).

Departures: the features z are a random projection of the inputs, as in the method `label_means`. They are computed
before training. The authors use latent features of a model that has trained for some rounds. The constant is 0 here and
-1 in the authors' program. Clusters are formed by average linkage. The authors use DBSCAN with a radius computed from
the data. A late device needs labels to join the nearest cluster, but not in the paper. Training is FedAvg in each
cluster.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from fedstrata.errors import PayloadError
from fedstrata.methods.base import Answers, Arrays, Candidate, Matrix, Moment, Plan, Question, Work
from fedstrata.methods.clustering import ClusterOptions, Grouping
from fedstrata.methods.fedclust import grouped_by_distance, nearest_cluster
from fedstrata.methods.profiles.features import FeatureOptions, feature_dim, feature_map
from fedstrata.methods.profiles.label_means import ROUNDING, projected

MOMENTS = "moments"
FEWEST = 2  # least number of examples from which a label's moments are computed


class Flux(Grouping):
    """Group devices once by moments of their data and of each label. Each cluster averages all layers, independently of
    other clusters.
    """

    class Options(ClusterOptions, FeatureOptions):
        """Hold the settings of the features."""

        sketch: int = Field(default=64, ge=1, le=4096)
        """Number m of values to which an input is projected; the inputs' dimension if that is less."""

    @property
    def needs_labels(self) -> bool:
        """True, because devices describe each label."""
        return True

    def questions(self) -> Sequence[Question]:
        """Return the question that asks each device for means and deviations of its features, over all examples and by
        label. Only the GPS reads the answers.
        """
        rows = min(self.options.sketch, feature_dim(self.options, self.facts.input_shape))
        shape = (self.facts.num_classes + 1, 2 * rows)
        return (Question(name=MOMENTS, moment=Moment.BEFORE, arrays={MOMENTS: ("float32", shape)}),)

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """Return the moments of all examples and of each label, shape (1 + classes, 2 m)."""
        classes, width = question.arrays[MOMENTS][1]

        def descriptor() -> Matrix:
            features = feature_map(self.options)(work.examples.inputs)
            points = projected(features, width // 2, self.facts.seed, clip=1.0)
            parts = [points, *(points[work.examples.labels == label] for label in range(classes - 1))]
            return np.stack([moments(part) for part in parts])

        return {MOMENTS: (await work.once(f"moments {width}", descriptor)).astype(np.float32)}

    def check_answer(self, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError for impossible moments. Features are vectors of length at most one, which limits their
        moments.
        """
        found = arrays[MOMENTS]
        if (found[:, found.shape[1] // 2 :] < 0).any() or (np.square(found).sum(axis=1) > 1 + ROUNDING).any():
            raise PayloadError("the answer has means and deviations that points of length one or less cannot have")

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Cluster the devices by the distances of their descriptors, with average linkage."""
        given = answers.of(MOMENTS)
        vectors = {device.device_index: given[device.device_index][MOMENTS].ravel() for device in answers.devices}
        return grouped_by_distance(vectors, answers.devices, self.options.given)

    def place(self, late: Candidate, answers: Answers, plan: Plan) -> int:
        """Return the number of the cluster with the smallest mean distance to the late device."""
        vectors = {index: each[MOMENTS].ravel() for index, each in answers.of(MOMENTS).items()}
        return nearest_cluster(late, vectors, plan)


def moments(points: Matrix) -> Matrix:
    """Return the means, then the standard deviations, of the columns of points (n, m), shape (2 m,). If there are fewer
    than two points, return zeros.
    """
    if len(points) < FEWEST:
        return np.zeros(2 * points.shape[1])
    return np.concatenate([points.mean(axis=0), points.std(axis=0)])
