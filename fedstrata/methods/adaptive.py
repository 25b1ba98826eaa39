"""Adaptive clustered federated learning (Filippakopoulos et al., Personalization in Distributed tinyML Applications).

All devices train some epochs from the same initial weights h⁰ and send some layers of the result h_k^E. The GPS
clusters the devices once, hierarchically, by the cosines of these layers. A cluster begins with the mean of its
members' h_k^E. In each later round, a device begins its training with the mix own_share · h_k + (1 − own_share) · h_c.
Here h_k is the model that the device trained last, and h_c is the model of its cluster. The result of the first round
does not count as h_k: the first mix of a device is h_c alone. The paper calls own_share λ.

In a cluster's first round, devices repeat the training from h⁰ with the same epochs and the same examples. So they get
the same h_k^E, bit by bit, and send all layers. The mean of these models is the result of lines 8 to 13 of the paper's
algorithm.

Departures: by default the cosines compare updates, h_k^E − h⁰, because updates separate tasks better than weights do.
The linkage is average linkage; the paper names no linkage. Each device computes its own mix, so all devices of a
cluster receive the same model.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedstrata.errors import ExperimentError
from fedstrata.methods.base import (
    Answers,
    Arrays,
    Candidate,
    Matrix,
    Measurement,
    Moment,
    Outcome,
    Plan,
    Question,
    Work,
)
from fedstrata.methods.clustering import ClusterOptions, Grouping, check_clusters, closest, grouped_by, grouped_within
from fedstrata.tensors.layout import Flat, Layout, taken

PRETRAINED = "pretrained"
OWN = "model"
MATRIX_AXES = 2  # number of axes of a dense layer's weight


class Adaptive(Grouping):
    """Group devices once, by the results of a first local training. Then mix each device's model with the model of its
    cluster.
    """

    class Options(ClusterOptions):
        """Hold the way in which devices are compared, the number of clusters, and the share of a device's own model in
        the mix with the model of its cluster.
        """

        own_share: float = Field(default=0.25, ge=0, le=1)
        """Share λ of a device's own model in its mix with the cluster's model: 0 is FedAvg in each cluster, 1 is local
        training.
        """
        pretrain_epochs: int = Field(default=2, ge=1)
        """Epochs E of local training before devices are compared."""
        compare: Literal["updates", "weights"] = "updates"
        """Devices are compared by their updates, or by their weights as in the paper."""
        layers: Literal["last", "dense", "all"] = "last"
        """Layers that are compared: the last layer, all dense layers as in the paper, or all layers."""
        threshold: float | None = Field(default=None, ge=-1, le=1)
        """Mean cosine above which clusters are joined, in place of `clusters`; 0.9 in the paper."""
        measure: Literal["mixed", "own"] = "mixed"
        """Model that a device measures at the start of a round: its mix (`mixed`), or its own model before mixing
        (`own`).
        """

    has_personal_state = True

    def check(self) -> None:
        """Raise ExperimentError for more clusters than devices, or for both a threshold and a number of clusters."""
        check_clusters(self.options.clusters, self.facts, self.options.threshold)

    # --- questions ------------------------------------------------------------------------------

    def questions(self) -> Sequence[Question]:
        """Return the question that asks each device for the compared layers after local training: their weights, or
        their weights minus the initial weights.
        """
        size = compared(self.facts.trainable, self.options.layers).size
        return (Question(name=PRETRAINED, moment=Moment.BEFORE, arrays={"layers": ("float32", (size,))}),)

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """Train locally from the initial weights, and return the compared layers, shape (size of these layers,)."""
        start = self.initial(work.model, 0)
        trained = (await work.train(start, epochs=self.options.pretrain_epochs)).weights
        vector = trained - start if self.options.compare == "updates" else trained
        layout = work.model.trainable
        return {"layers": taken(vector, layout.slices_of(compared(layout, self.options.layers)))}

    # --- the plan -------------------------------------------------------------------------------

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Cluster the devices by the cosines of their layers, with average linkage. The option `threshold` or
        `clusters` decides the number of clusters. Without both options, the dendrogram decides it.
        """
        given, threshold = answers.of(PRETRAINED), self.options.threshold
        indexes = tuple(device.device_index for device in answers.devices)
        affinity = cosine_affinity(np.stack([given[index]["layers"] for index in indexes]))
        if threshold is None:
            clusters, rule = grouped_by(affinity, answers.devices, self.options.given)
        else:
            clusters = grouped_within(affinity, answers.devices, (1.0 - threshold) / 2)
            rule = f"{len(clusters)} at cosine {threshold}"
        return Plan.ordered(clusters, rule, affinity=affinity, related=indexes)

    def place(self, late: Candidate, answers: Answers, plan: Plan) -> int:
        """Return the number of the cluster with the highest mean cosine to the late device."""
        given, indexes = answers.of(PRETRAINED), [device.device_index for device in answers.devices]
        own = units(given[late.device_index]["layers"][None])[0]
        cosines = units(np.stack([given[index]["layers"] for index in indexes])) @ own
        return closest(dict(zip(indexes, cosines.tolist(), strict=True)), plan.clusters)

    # --- local work -----------------------------------------------------------------------------

    async def local(self, work: Work) -> Outcome:
        """Train for a round. In the first round, repeat the local training by which devices were grouped. In later
        rounds, train the mix of the device's own model and the received model. The trained model is the device's own
        model of the next round.
        """
        if not work.lps_round:
            first = await work.train(self.initial(work.model, 0), epochs=self.options.pretrain_epochs)
            return Outcome.of(first)
        trained = await work.train(self._mixed(work))
        measured = trained.measured
        if measured is not None and self.options.measure == "own":
            measured = await work.measure(self._own(work))
        return Outcome(
            weights=trained.weights,
            train_loss=trained.train_loss,
            measured=measured,
            personal={OWN: trained.weights},
        )

    def trained_examples(self, examples: int, lps_round: int) -> int:
        """Return the number of examples that are trained in a round. The first round has `pretrain_epochs` epochs."""
        training = self.facts.training
        if not lps_round:
            return int(self.options.pretrain_epochs) * training.epoch_examples(examples)
        return training.trained_examples(examples)

    def _own(self, work: Work) -> Flat:
        """Return h_k, the model that the device trained last. The training of the run's first round is not kept. So
        until the device has trained in a later round, return the received weights.
        """
        own: Flat = work.personal.get(OWN, work.start)
        return own

    def _mixed(self, work: Work) -> Flat:
        """Return the mix of h_k and the received model. The device begins its round with this mix."""
        share = np.float32(self.options.own_share)
        mixed: Flat = share * self._own(work) + (np.float32(1) - share) * work.start
        return mixed

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Measure the model that the option `measure` names: the mix of the device's own model and the received model,
        or the own model alone. Also measure the received model of the cluster.
        """
        used = self._own(work) if self.options.measure == "own" else self._mixed(work)
        return await work.measure(used), await work.measure(work.start)


def compared(layout: Layout, layers: str) -> Layout:
    """Return the layout of the tensors that the option `layers` names: the last layer, all dense layers, or all
    tensors.

    Raises:
        ExperimentError: `layers` is `dense`, and the model has no dense layer.
    """
    dense = [_layer(tensor.name) for tensor in layout.tensors if len(tensor.shape) == MATRIX_AXES]
    wanted = {"last": [_layer(layout.names[-1])], "dense": dense, "all": [_layer(name) for name in layout.names]}
    found = layout.select(name for name in layout.names if _layer(name) in wanted[layers])
    if not found.size:
        raise ExperimentError(f"method.layers: the model has no {layers} layers; choose all")
    return found


def _layer(tensor: str) -> str:
    return tensor.rpartition(".")[0] or tensor


def units(vectors: NDArray[Any]) -> Matrix:
    """Return vectors (N, size) scaled to length one. Vectors of zeros stay zeros."""
    wide = vectors.astype(np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    return np.asarray(wide / np.maximum(norms, np.finfo(np.float64).tiny)[:, None])


def cosine_affinity(vectors: NDArray[Any]) -> Matrix:
    """Return (1 + cos) / 2 for each pair of the vectors (N, size), shape (N, N), in [0, 1]. The cosine between a vector
    of zeros and any other vector is 0.
    """
    directions = units(vectors)
    matrix: Matrix = np.clip((1.0 + np.einsum("ik,jk->ij", directions, directions)) / 2, 0.0, 1.0)
    matrix = (matrix + matrix.T) / 2
    np.fill_diagonal(matrix, 1.0)
    return matrix
