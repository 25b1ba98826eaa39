"""CFL splits a cluster if its devices' updates disagree (Sattler et al., Clustered Federated Learning, TNNLS 2020).

In each global round, the GPS checks each cluster before it adds the updates. If the mean update is small but the
largest update is not, the updates point in different directions. Then the GPS divides the cluster into two by the
cosines of the updates. The updates of this round already go into the models of the new clusters, as in the authors'
program.

Departures: the paper's two absolute thresholds (‖mean‖ < ε₁, max ‖·‖ > ε₂) depend on the model. So the condition here
is relative: ‖mean‖ < ratio · max ‖·‖. For this decision, longer updates are clipped to twice the lower median norm of
their cluster, so that no single device decides. The paper's optional check of a bipartition uses the largest cosine
between its two parts. As in the authors' program, this check is left out. Devices send sketches of their updates, which
keep cosines and norms (`sketch.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedstrata.methods.base import (
    Answers,
    Arrays,
    Channel,
    Matrix,
    Method,
    MethodSettings,
    Moment,
    Plan,
    Question,
    Reach,
    Work,
    all_layers,
)
from fedstrata.methods.clustering import cut, lower_median
from fedstrata.methods.sketch import check_sketch, sketch_of
from fedstrata.models import Model

UPDATE = "update_sketch"
SMALLEST = 3  # least number of devices of a cluster that may be split, as in the authors' program
LONGEST = 2.0  # longer updates are clipped to this multiple of the cluster's median norm before they are compared


class Cfl(Method):
    """Begin with one cluster, and divide clusters by the cosines of their devices' updates."""

    class Options(MethodSettings):
        """Hold the conditions under which a cluster is divided, and the way in which it is divided."""

        mean_ratio: float = Field(default=0.25, gt=0, le=1)
        """A cluster is split if the norm of its mean update is below this share of the largest norm."""
        first_round: int = Field(default=5, ge=1)
        """First global round in which a cluster may be split, counted from 1."""
        sketch: int = Field(default=1024, ge=16, le=1 << 16)
        """Length of the sketch of an update, from which cosines are computed."""
        linkage: Literal["complete", "single"] = "complete"
        """Linkage of the bipartition: `complete` as in the authors' program, `single` as in their Algorithm 1."""

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return one channel: the whole model, averaged in each cluster."""
        return all_layers(model, Reach.CLUSTER)

    @property
    def clusters_known(self) -> int:
        """Return 0: the number of clusters is known only after devices have trained."""
        return 0

    def questions(self) -> Sequence[Question]:
        """Return the question that asks each device for a sketch of its update. Devices answer before they send the
        update.
        """
        arrays = {"sketch": ("float64", (self.options.sketch,))}
        return (Question(name=UPDATE, moment=Moment.TRAINED, arrays=arrays),)

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """Return the device's answer: a sketch (random projection) of its update, with `options.sketch` numbers."""
        return {"sketch": sketch_of(work.update[: work.model.trainable.size], self.options.sketch, work.seed)}

    def check_answer(self, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError for a sketch with impossibly large numbers."""
        check_sketch(arrays["sketch"])

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Keep each cluster, or divide it into two parts. The larger part keeps the cluster's number, and both parts
        begin with the cluster's model.

        Devices without an answer stay in the part that keeps the cluster's number.
        """
        if before is None:
            return super().plan(moment, answers, before)
        clusters, parents = list(before.clusters), list(range(len(before.clusters)))
        if answers.global_round + 1 >= self.options.first_round:
            for number, cluster in enumerate(before.clusters):
                leaving = self._leaving(cluster, answers)
                if leaving:
                    clusters[number] = tuple(index for index in cluster if index not in leaving)
                    clusters.append(leaving)
                    parents.append(number)
        rule = before.rule if len(clusters) == 1 else f"{len(clusters)} by bipartition"
        return Plan(clusters=tuple(clusters), rule=rule, parents=tuple(parents))

    def _leaving(self, cluster: Sequence[int], answers: Answers) -> tuple[int, ...]:
        """Return the devices of the smaller part, which leave the cluster. If the cluster is not divided, return an
        empty tuple.
        """
        given = {index: arrays["sketch"] for index, arrays in answers.of(UPDATE).items() if index in cluster}
        if len(given) < SMALLEST:
            return ()
        examples = [device.num_examples for device in answers.devices if device.device_index in given]
        updates = np.stack(list(given.values()))
        norms = np.linalg.norm(updates, axis=1)
        longest = LONGEST * lower_median(norms)
        updates *= (longest / np.maximum(norms, max(longest, np.finfo(float).tiny)))[:, None]
        norms = np.minimum(norms, longest)
        mean = np.average(updates, axis=0, weights=examples)  # the step that the cluster's model would take
        if np.linalg.norm(mean) >= self.options.mean_ratio * norms.max():
            return ()
        labels = cut(_distances(updates, norms), 2, self.options.linkage)
        parts = [tuple(index for index, label in zip(given, labels, strict=True) if label == part) for part in (0, 1)]
        return min(parts, key=lambda part: (len(part), -part[0]))


def _distances(updates: Matrix, norms: Matrix) -> Matrix:
    """Return one minus the cosine of each pair of updates, shape (N, N). The distance between an update of zeros and
    any other update is 1.
    """
    directions = updates / np.maximum(norms, np.finfo(float).tiny)[:, None]
    distances = np.clip(1.0 - directions @ directions.T, 0.0, 2.0)
    np.fill_diagonal(distances, 0.0)
    return distances
