"""FedProto (Y. Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022).

Devices keep their models, and exchange the mean features (prototypes) of each label. Features z are the inputs of the
model's last layer. After its training, device i computes c_ij, the mean of z over its n_ij examples with label j. The
servers average prototypes (Eq. 3 to 6 of the paper):

    C_j = Σ_i n_ij c_ij / Σ_i n_ij   over the devices that take part in the round.

In the next round a device minimises F(w) + λ · mean of (z − C_y)², over the examples of a batch and the features. A
label without examples in the last round has no prototype, and adds 0.

A device sends two tables: n_ij c_ij / n_i and n_ij / n_i. C_j is the ratio of their n_i-weighted means.

Departures: the device uses its model's outputs, not the nearest prototype. Eq. 6 also divides by the number of devices
that have a label, which would shrink prototypes; the authors' program does not, and neither does this method. As in the
authors' program, the distance is from each example's features, not from the local prototypes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedstrata.methods.base import (
    Array,
    Arrays,
    Channel,
    ForwardPass,
    Method,
    MethodSettings,
    NonNegativeFloat,
    Outcome,
    Reach,
    Steps,
    Trained,
    Work,
    one_training,
)
from fedstrata.models import Model
from fedstrata.tensors import Layout

if TYPE_CHECKING:
    import torch

SUMS, SHARES = "prototypes", "label_shares"
LEAST = 1e-6  # a smaller share of a label is a rest of former rounds, because sums have a grid


@dataclass(frozen=True)
class Regularised:
    """Add to a batch's loss λ times the mean squared distance between the batch's features and the prototypes of its
    labels.
    """

    strength: float
    prototypes: "torch.Tensor"  # shape (num_classes, width)
    known: "torch.Tensor"  # 1 for a label with a prototype, otherwise 0, shape (num_classes,)

    def __call__(self, loss: "torch.Tensor", found: ForwardPass) -> "torch.Tensor":
        """Return the loss plus λ times the mean squared distance."""
        away = (found.features - self.prototypes[found.targets]) * self.known[found.targets][:, None]
        return loss + self.strength * (away * away).mean()


class FedProto(Method):
    """Keep the whole model on each device, and pull its features towards the mean features of each label over all
    devices.
    """

    class Options(MethodSettings):
        """Hold λ, the strength of the pull towards prototypes."""

        strength: NonNegativeFloat = 1.0
        """Strength λ of the pull of features towards prototypes; 0 is local training."""

    trained_examples = one_training

    @property
    def needs_labels(self) -> bool:
        """True: prototypes are mean features per label."""
        return True

    def refuses(self) -> Mapping[str, str]:
        """Refuse models without a dense last layer, optimisers of servers, noise on updates, and asynchronous
        rounds.
        """
        step = "prototypes are means of the round, and a server's optimiser would add former rounds"
        return {
            "no dense last layer": "prototypes are mean inputs of the last layer",
            "training.gps_optimiser": step,
            "training.lps_optimiser": step,
            "privacy.updates": "noise on shares of labels could make prototypes of any size",
            "asynchronous rounds": "prototypes are means of one round",
        }

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return two channels: the model, which stays on the device, and the tables of prototypes and label shares."""
        labels, width = self.facts.num_classes, model.last_width
        tables = Layout.of({SUMS: (labels, width), SHARES: (labels,)})
        return (
            Channel(name="model", tensors=model.layout, reach=Reach.DEVICE),
            Channel(name="prototypes", tensors=tables, reach=Reach.EVERYWHERE),
        )

    async def local(self, work: Work) -> Outcome:
        """Train with the pull towards prototypes, then compute the device's own prototypes."""
        trained = await work.compute(lambda: self._trained(work, work.steps(work.start)))
        features = await work.features(trained.weights, work.examples.inputs)
        return Outcome(
            weights=trained.weights,
            train_loss=trained.train_loss,
            measured=trained.measured,
            tables=self._tables(features, work.examples.labels),
        )

    def _trained(self, work: Work, steps: Steps) -> Trained:
        shares = work.tables[SHARES]
        known = shares > LEAST
        prototypes = work.tables[SUMS] / np.where(known, shares, 1)[:, None]
        processor = work.model.processor
        objective = Regularised(
            self.options.strength,
            processor.tensor(prototypes.astype(np.float32)),
            processor.tensor(known.astype(np.float32)),
        )
        for batch in steps.batches():
            steps.move(steps.gradient(steps.weights, batch, objective))
        return steps.trained()

    def _tables(self, features: Array, labels: Array) -> Arrays:
        """Return n_ij c_ij / n_i and n_ij / n_i for each label j of a device i."""
        mine = labels[None, :] == np.arange(self.facts.num_classes)[:, None]
        sums = np.stack([features[each].sum(0, dtype=np.float64) for each in mine])
        return {
            SUMS: (sums / len(labels)).astype(np.float32),
            SHARES: mine.mean(1).astype(np.float32),
        }
