"""PACFL clusters devices by principal angles between the subspaces of their data (Vahidian et al., AAAI 2023).

Every device sends the p leading left singular vectors of its data to the GPS. The GPS clusters devices by an angle
between their vectors, with average linkage. The option `angle` chooses the angle between two devices:

    principal  the smallest principal angle between the subspaces that the vectors span (the paper's Eq. 2)
    sum        the sum of the angles between vectors with the same number (the paper's Eq. 3)
    smallest   the smallest angle between any two vectors, which the published program computes in place of Eq. 2

As in that program, a device computes vectors for each label separately, unless `by_label` is false. Departures: here a
vector and its negative are equal, because the singular value decomposition chooses the sign arbitrarily. In the program
the sign matters. Here the number of clusters is given, or read from the dendrogram. In the program it follows from a
threshold on the angle.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedstrata.errors import ExperimentError, PayloadError
from fedstrata.methods.base import Answers, Arrays, Candidate, Matrix, Moment, Plan, Question, Work
from fedstrata.methods.clustering import ClusterOptions, Grouping, closest, grouped_by
from fedstrata.methods.profiles.features import FeatureOptions, feature_dim, feature_map
from fedstrata.methods.profiles.relevance import check_eigenvectors, check_profile

Vectors = NDArray[np.float64]
SUBSPACE = "subspace"


class Pacfl(Grouping):
    """Group devices once, before training, by principal angles. Each cluster averages all layers, independently of
    other clusters.
    """

    class Options(ClusterOptions, FeatureOptions):
        """Hold the settings of the subspaces and of the angle."""

        vectors: int = Field(default=3, ge=1, le=4096)
        """Number p of singular vectors that a device sends: for each label, or in all if `by_label` is false."""
        by_label: bool = True
        """If true, a device computes singular vectors for each label separately; otherwise for all its data together.
        """
        angle: Literal["principal", "smallest", "sum"] = "smallest"
        """Angle between two devices: `principal` of their subspaces, `smallest` of any two vectors, or `sum` over
        vectors with the same number.
        """

    def check(self) -> None:
        """Raise ExperimentError if `angle: sum` is combined with `by_label`. `sum` pairs vectors by their number, but
        the vectors of different labels are not comparable.
        """
        super().check()
        if self.options.angle == "sum" and self.options.by_label:
            raise ExperimentError(
                "method.angle sum compares vectors place by place, not label by label; set method.by_label: false"
            )

    @property
    def needs_labels(self) -> bool:
        """True if devices compute vectors for each label."""
        return bool(self.options.by_label)

    def questions(self) -> Sequence[Question]:
        """Return the question that asks devices for their leading singular vectors. Only the GPS reads the answers."""
        rows = self.options.vectors * (self.facts.num_classes if self.options.by_label else 1)
        shape = (rows, feature_dim(self.options, self.facts.input_shape))
        vectors = {"vectors": ("float32", shape)}
        return (Question(name=SUBSPACE, moment=Moment.BEFORE, arrays=vectors, fewer_rows=True),)

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """Return the singular vectors as rows of length one, shape (rows, d). There are at most p rows or, with
        `by_label`, at most p rows per label.
        """
        features = feature_map(self.options)
        labels = work.examples.labels if self.options.by_label else None

        def vectors() -> Vectors:
            return leading_vectors(features(work.examples.inputs), labels, self.options.vectors)

        return {"vectors": (await work.once(SUBSPACE, vectors)).astype(np.float32)}

    def check_answer(self, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError unless the vectors have length one."""
        check_eigenvectors(arrays["vectors"])

    def check_answer_of(self, device: Candidate, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError if there are more vectors than examples. Without `by_label`, also raise it if a vector is
        missing, or if the vectors are not orthonormal.
        """
        self.check_answer(question, arrays, relayed_by)
        vectors, (most, dim) = arrays["vectors"], question.arrays["vectors"][1]
        if not self.options.by_label:
            check_profile(vectors, min(most, device.num_examples, dim))
        if len(vectors) > device.num_examples:
            raise PayloadError(
                f"the answer has {len(vectors)} vectors, more than the device's {device.num_examples} examples"
            )

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Cluster the devices by their angles, with average linkage. Angles are divided by a right angle."""
        given = answers.of(SUBSPACE)
        matrix = affinity([given[device.device_index]["vectors"] for device in answers.devices], self.options.angle)
        clusters, rule = grouped_by(matrix, answers.devices, self.options.given)
        return Plan.ordered(
            clusters, rule, affinity=matrix, related=tuple(device.device_index for device in answers.devices)
        )

    def place(self, late: Candidate, answers: Answers, plan: Plan) -> int:
        """Return the number of the cluster with the smallest mean angle to the late device."""
        given = answers.of(SUBSPACE)
        own = given[late.device_index]["vectors"]
        likeness = {
            device.device_index: affinity([own, given[device.device_index]["vectors"]], self.options.angle)[0, 1]
            for device in answers.devices
        }
        return closest(likeness, plan.clusters)


def leading_vectors(features: Vectors, labels: NDArray[np.int64] | None, count: int) -> Vectors:
    """Return the `count` leading right singular vectors of features (n, d). In the paper examples are columns, so the
    same vectors are left singular vectors. With `labels`, return the singular vectors of each label's rows, one label
    after another.
    """
    parts = [features] if labels is None else [features[labels == label] for label in np.unique(labels)]
    return np.concatenate([np.linalg.svd(part, full_matrices=False)[2][:count] for part in parts])


def affinity(subspaces: Sequence[NDArray[Any]], angle: str) -> Matrix:
    """Return the similarity of each pair of N devices, shape (N, N). It is 1 − a / (π / 2), where a is the result of
    `angle_between` for the two devices.
    """
    matrix, vectors = np.eye(len(subspaces)), [each.astype(np.float64) for each in subspaces]
    for i, one in enumerate(vectors):
        for j in range(i):
            matrix[i, j] = matrix[j, i] = 1.0 - angle_between(one, vectors[j], angle) / (np.pi / 2)
    return matrix


def angle_between(one: Vectors, other: Vectors, angle: str) -> float:
    """Return the angle in radians between two sets of vectors of length one, shapes (p, d) and (q, d). The option
    `angle` names the kind of angle. For `sum`, return the mean over pairs of vectors.
    """
    from scipy.linalg import subspace_angles

    if angle == "principal":
        return float(subspace_angles(one.T, other.T)[-1])
    cosines = np.minimum(np.abs(one @ other.T), 1.0)
    return float(np.arccos(np.diagonal(cosines)).mean() if angle == "sum" else np.arccos(cosines.max()))
