"""IFCA (Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020).

In each global round every device receives the models of all clusters and says how well each does on its own examples;
it belongs to the cluster of the least loss (the cluster identity estimate of their Algorithm 1), trains that model, and
the clusters' models are averaged over their devices (its option II, model averaging; here each by its examples). The
clusters begin with different weights. A cluster that nobody joins keeps its model.
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
from fedstrata.methods.clusters import check_clusters
from fedstrata.models import Model
from fedstrata.tensors.layout import Flat

INITIAL_ADDRESS = 0x1FCA  # keeps the clusters' initial weights apart from every other use of the seed
LOSSES = "losses"
LARGEST = float(np.finfo(np.float64).max)


class Ifca(Method):
    """Let each device join, in each global round, the cluster with the best model for its data."""

    class Options(MethodSettings):
        """The number of models, and whether they have layers in common."""

        clusters: int = Field(default=2, ge=1)
        """Number of models; every device receives all of them."""
        shares_layers: bool = False
        """Whether all clusters have the layers of `model.shared` in common."""

    fetches_all = True

    def check(self) -> None:
        """No more clusters than devices."""
        check_clusters(self.options.clusters, self.facts)

    @property
    def clusters_known(self) -> int:
        """The number that the options give."""
        return int(self.options.clusters)

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return the whole model in each cluster, or all but its shared layers."""
        return shared_and_rest(model, Reach.CLUSTER) if self.options.shares_layers else all_layers(model, Reach.CLUSTER)

    def initial(self, model: Model, cluster: int) -> Flat:
        """Return the weights of its own for each cluster; those of the first are what any method begins with."""
        if not cluster:
            return model.initial(self.facts.seed)
        drawn = np.random.SeedSequence([self.facts.seed, INITIAL_ADDRESS, cluster]).generate_state(1, np.uint64)
        return model.initial(int(drawn[0]) >> 1)

    def questions(self) -> Sequence[Question]:
        """Return the mean loss of every cluster's model on the device's own examples."""
        losses = {"losses": ("float64", (self.options.clusters,))}
        return (Question(name=LOSSES, moment=Moment.RECEIVED, arrays=losses),)

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """Shape (clusters,), in their order; a model that has diverged has the largest loss there is."""
        measured = await asyncio.gather(*(work.measure(weights, on_own=True) for weights in work.received))
        losses = np.array([each.loss for each in measured], np.float64)
        return {"losses": np.nan_to_num(losses, nan=LARGEST, posinf=LARGEST)}

    def check_answer(self, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Require a loss, from 0 up, for every cluster."""
        if len(arrays["losses"]) != self.options.clusters:
            raise PayloadError(f"{len(arrays['losses'])} losses of the models of {self.options.clusters} clusters")
        if arrays["losses"].min() < 0:
            raise PayloadError(f"a loss of {arrays['losses'].min():g}; expected 0 or more")

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Return each device that has answered where its loss is least, the first among equals; the others where they
        were.
        """
        count = self.options.clusters
        if before is None:  # nothing is trained before devices have been asked
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
