"""One-shot clustering by eigen-relevance, for multi-task hierarchical federated learning.

Source: Ali & Arafa, Algorithm 2. Devices send eigenvectors once. Each device then computes how relevant the
eigenvectors of other devices are for its own data. The GPS collects these numbers in the relevance matrix R. It
clusters devices by the distances 1 − R, with average linkage. If no number of clusters is given, the dendrogram decides
it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from fedstrata.errors import ExperimentError, PayloadError, RunStoppedError
from fedstrata.methods.base import Answers, Arrays, Candidate, Matrix, Method, Moment, Plan, Question, Work
from fedstrata.methods.clustering import ClusterOptions, check_clusters, closest, grouped_by
from fedstrata.methods.profiles.features import FeatureOptions, feature_dim, feature_map
from fedstrata.methods.profiles.private_profiles import private_spectrum
from fedstrata.methods.profiles.relevance import (
    Measure,
    Spectrum,
    check_eigenvectors,
    check_profile,
    landmarks,
    relevance,
    relevance_matrix,
    spectrum_of,
)

PROFILE, RELEVANCE = "profile", "relevance"
UP_TO_ROUNDING = 1e-9


class OneShot(Method):
    """Group devices once, before training, by the relevance of their data to each other."""

    class Options(ClusterOptions, FeatureOptions):
        """Hold the number of clusters, and the settings of the profiles: the eigenvectors that devices share before
        training. Further settings are used only in runs with many devices or with late devices.
        """

        eigenvectors: int = Field(default=5, ge=1, le=4096)
        """Number k of eigenvectors that a device shares."""
        measure: Measure = "geometric"
        """Formula for the relevance of one device to another; `geometric` is the paper's."""
        representatives: int = Field(default=1, ge=1)
        """Number of devices of each cluster with which a late device is compared."""
        exact_up_to: int = Field(default=128, ge=1)
        """Largest number of devices at which every device is compared with all others; with more devices, only with the
        landmarks.
        """
        landmarks: int = Field(default=64, ge=2)
        """Number of landmarks: devices, drawn by the seed, from which the clusters are formed if there are many
        devices.
        """

    noises_profiles = True

    def check(self) -> None:
        """Raise ExperimentError for more clusters than devices. If only landmarks are clustered, also raise it for more
        clusters than landmarks.
        """
        options, devices = self.options, self.facts.device_count
        check_clusters(options.clusters, self.facts)
        if options.given is not None and devices > options.exact_up_to and options.given > options.landmarks:
            raise ExperimentError(
                f"method.clusters is {options.given}, more than method.landmarks, {options.landmarks}; lower it"
            )

    @property
    def clusters_known(self) -> int:
        """The number of clusters in the options; 0 if the dendrogram decides it."""
        return self.options.given or 0

    # --- questions ------------------------------------------------------------------------------

    def questions(self) -> Sequence[Question]:
        """Return two questions. The first asks for eigenvectors, which the GPS relays to other devices. The second asks
        each device for its row of relevances.
        """
        shape = (self.options.eigenvectors, feature_dim(self.options, self.facts.input_shape))
        profile, most = {"eigenvectors": ("float32", shape)}, (self.facts.device_count,)
        row = {"devices": ("int64", most), "values": ("float64", most)}
        return (
            Question(name=PROFILE, moment=Moment.BEFORE, arrays=profile, relayed=True, fewer_rows=True),
            Question(name=RELEVANCE, moment=Moment.BEFORE, arrays=row, fewer_rows=True),
        )

    def relays(self) -> Sequence[int]:
        """Return the indexes of the devices from which the GPS relays eigenvectors: all devices or, if there are many
        devices, only the landmarks.
        """
        options = self.options
        return landmarks(
            self.facts.device_count, self.facts.seed, exact_up_to=options.exact_up_to, count=options.landmarks
        )

    async def _spectrum(self, work: Work) -> Spectrum:
        features, privacy = feature_map(self.options), self.facts.privacy
        if privacy is None or privacy.profiles is None:
            return await work.once("spectrum", lambda: spectrum_of(features(work.examples.inputs)))
        profiles, noise = privacy.profiles, work.noise
        return await work.once(
            f"spectrum {profiles}", lambda: private_spectrum(features(work.examples.inputs), profiles, noise)
        )

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """Answer the first question with the leading eigenvectors, shape (k, d). Answer the second with the indexes of
        the other devices, and the relevance of each to this device.
        """
        if question.name == PROFILE:
            return {"eigenvectors": (await self._spectrum(work)).profile(self.options.eigenvectors)}
        devices = sorted(heard)
        return {
            "devices": np.array(devices, np.int64),
            "values": np.array([heard[index] for index in devices], np.float64),
        }

    async def hear(self, question: Question, work: Work, arrays: Arrays) -> float:
        """Return the relevance of another device's eigenvectors to this device's data."""
        options = self.options
        spectrum = await self._spectrum(work)
        return relevance(spectrum, arrays["eigenvectors"], k=options.eigenvectors, measure=options.measure)

    def check_answer_of(self, device: Candidate, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError if eigenvectors are not orthonormal, or if their number does not fit the device's number
        of examples.
        """
        self.check_answer(question, arrays, relayed_by)
        if question.name == PROFILE:
            most, dim = question.arrays["eigenvectors"][1]
            privacy = self.facts.privacy
            is_noised = privacy is not None and privacy.profiles is not None
            rank = dim if is_noised else min(device.num_examples, dim)  # with noise, no eigenvalue is 0
            check_profile(arrays["eigenvectors"], min(most, rank))

    def check_answer(self, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError if there is no eigenvector, or if the norm of an eigenvector is not 1. Also raise it for a
        row of relevances that lacks a device with relayed eigenvectors, or has a number outside [0, 1].
        """
        if question.name == PROFILE:
            check_eigenvectors(arrays["eigenvectors"])
            return
        lacking = set(relayed_by) - set(arrays["devices"].tolist())
        if lacking or len(arrays["devices"]) != len(arrays["values"]):
            raise PayloadError(
                f"the answer has {len(arrays['values'])} relevances for {len(arrays['devices'])} devices, and lacks "
                f"{len(lacking)} devices"
            )
        if not ((arrays["values"] >= 0) & (arrays["values"] <= 1 + UP_TO_ROUNDING)).all():
            raise PayloadError("the answer has a relevance outside [0, 1]")

    # --- plans ----------------------------------------------------------------------------------

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Cluster the devices by average linkage of 1 − R. If only a sample (landmarks) is clustered, each other device
        joins the cluster with the highest mean relevance.
        """
        known = set(self.relays())
        related = [device for device in answers.devices if device.device_index in known]
        others = [device.device_index for device in answers.devices if device.device_index not in known]
        if not related:
            raise RunStoppedError("no device that was drawn as a landmark has enrolled; raise method.landmarks")
        rows = {index: _row(arrays) for index, arrays in answers.of(RELEVANCE).items()}
        matrix = _matrix([device.device_index for device in related], rows)
        clusters, rule = grouped_by(matrix, related, self.options.given, sets_apart=True)
        clusters = sorted(sorted(cluster) for cluster in clusters)
        if others:
            rule += f"; among {len(related)} landmarks, {len(others)} devices placed by relevance"
        landmarks_by_cluster = [tuple(cluster) for cluster in clusters]
        for index in others:
            clusters[closest(rows[index], landmarks_by_cluster)].append(index)
        indexes = tuple(device.device_index for device in related)
        return Plan.ordered(clusters, rule, affinity=matrix, related=indexes)

    def sponsors(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """Return the sponsors of each cluster: the devices with the highest mean relevance within the cluster."""
        if plan.affinity is None:
            return ()
        places = {index: place for place, index in enumerate(plan.related)}
        found = []
        for cluster in plan.clusters:
            indexes = [index for index in cluster if index in places]
            rows = [places[index] for index in indexes]
            means = plan.affinity[np.ix_(rows, rows)].mean(axis=1)
            best = sorted(zip(-means, indexes, strict=True))[: self.options.representatives]
            found.append(tuple(index for _, index in best))
        return tuple(found)

    def place(self, late: Candidate, answers: Answers, plan: Plan) -> int:
        """Compare the late device with the sponsors of each cluster, and return the number of the cluster with the
        highest mean relevance.
        """
        return closest(_row(answers.of(RELEVANCE)[late.device_index]), self.sponsors(plan))


def _row(arrays: Arrays) -> dict[int, float]:
    return dict(zip(arrays["devices"].tolist(), arrays["values"].tolist(), strict=True))


def _matrix(indexes: Sequence[int], rows: Mapping[int, Mapping[int, float]]) -> Matrix:
    """Return the matrix R of these devices, in their order, shape (N, N) (Eq. 5)."""
    places = {index: place for place, index in enumerate(indexes)}
    matrix = np.ones((len(indexes), len(indexes)))
    for index in indexes:
        for other, value in rows.get(index, {}).items():
            if other in places:
                matrix[places[index], places[other]] = value
    return relevance_matrix(matrix)
