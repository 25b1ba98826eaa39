"""IFCA (Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020).

In each global round every device receives the models of all clusters and measures each model on its own examples. The
device joins the cluster with the lowest loss (the cluster identity estimate of Algorithm 1) and trains the model of
this cluster. The next model of a cluster is the mean of the models that its devices have trained, weighted by examples
(option II, model averaging). The clusters begin with different weights. A cluster without devices keeps its model.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from fedstrata.errors import PayloadError
from fedstrata.methods.base import (
    Answers,
    Arrays,
    Channel,
    Method,
    MethodSettings,
    Moment,
    Plan,
    Question,
    Reach,
    Work,
    all_layers,
    shared_and_rest,
)
from fedstrata.methods.clustering import check_clusters
from fedstrata.models import Model
from fedstrata.tensors.layout import Flat

INITIAL_ADDRESS = 0x1FCA  # an address that only the clusters' initial weights use
LOSSES = "losses"
LARGEST = float(np.finfo(np.float64).max)


class Ifca(Method):
    """Let each device join, in each global round, the cluster with the best model for its data."""

    class Options(MethodSettings):
        """Hold the number of clusters, and whether they have layers in common."""

        clusters: int = Field(default=2, ge=1)
        """Number of models; every device receives all of them."""
        shares_layers: bool = False
        """Whether all clusters have the layers of `model.shared` in common."""

    fetches_all = True

    def check(self) -> None:
        """Raise ExperimentError for more clusters than devices."""
        check_clusters(self.options.clusters, self.facts)

    @property
    def clusters_known(self) -> int:
        """The number of clusters in the options."""
        return int(self.options.clusters)

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return one channel with the whole model, averaged in each cluster. With `shares_layers`, a second channel
        averages the shared layers over all devices.
        """
        return shared_and_rest(model, Reach.CLUSTER) if self.options.shares_layers else all_layers(model, Reach.CLUSTER)

    def initial(self, model: Model, cluster: int) -> Flat:
        """Return a cluster's initial weights, which differ between clusters. The first cluster begins with the weights
        with which other methods begin.
        """
        if not cluster:
            return model.initial(self.facts.seed)
        drawn = np.random.SeedSequence([self.facts.seed, INITIAL_ADDRESS, cluster]).generate_state(1, np.uint64)
        return model.initial(int(drawn[0]) >> 1)

    def questions(self) -> Sequence[Question]:
        """Return the question that asks each device for the mean loss of every cluster's model on the device's
        examples.
        """
        losses = {"losses": ("float64", (self.options.clusters,))}
        return (Question(name=LOSSES, moment=Moment.RECEIVED, arrays=losses),)

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """Return the loss of each cluster's model, shape (clusters,). If a model has diverged, its loss is the largest
        possible number.
        """
        measured = await asyncio.gather(*(work.measure(weights, on_own=True) for weights in work.received))
        losses = np.array([each.loss for each in measured], np.float64)
        return {"losses": np.nan_to_num(losses, nan=LARGEST, posinf=LARGEST)}

    def check_answer(self, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError for a loss below 0."""
        if arrays["losses"].min() < 0:
            raise PayloadError(f"the answer has a loss of {arrays['losses'].min():g}; expected 0 or more")

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Put each device into the cluster with its smallest loss. If several clusters have this loss, take the first.
        Devices without an answer stay in their cluster.
        """
        count = self.options.clusters
        if before is None:  # the first plan, before any answer; devices train only after they have answered
            return _plan({device.device_index: number % count for number, device in enumerate(answers.devices)}, count)
        given = answers.of(LOSSES)
        chosen = {index: int(np.argmin(arrays["losses"])) for index, arrays in given.items()}
        devices = [device.device_index for device in answers.devices]
        return _plan(
            {index: chosen[index] if index in chosen else before.cluster_of(index) for index in devices}, count
        )


def _plan(places: Mapping[int, int], count: int) -> Plan:
    clusters = tuple(tuple(index for index in sorted(places) if places[index] == number) for number in range(count))
    return Plan(clusters=clusters, rule=f"{count} as given, by least loss")
