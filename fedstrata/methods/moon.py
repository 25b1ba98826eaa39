"""MOON (Q. Li, B. He and D. Song, Model-Contrastive Federated Learning, CVPR 2021).

A local step minimises the mean over its examples of F(w) + μ · l (Eq. 3 and 4 of the paper), where

    l = − log( exp(cos(z, z_glob) / τ) / (exp(cos(z, z_glob) / τ) + exp(cos(z, z_prev) / τ)) ).

z are the features of an example: the inputs of the model's last layer. z_glob are the features with the received
weights w^t, and z_prev with the device's weights after its last training. In a device's first round, z_prev is z_glob,
so the gradient of l is 0.

Departures: the paper adds a projection head of two dense layers before the last layer. Here the model stays as the
experiment file says. z_glob and z_prev are computed without dropout, and with the statistics of their own weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import PositiveFloat

from fedstrata.methods.base import (
    ForwardPass,
    MethodSettings,
    NonNegativeFloat,
    Outcome,
    Steps,
    Trained,
    Work,
    one_training,
)
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.tensors.layout import Flat

if TYPE_CHECKING:
    import torch

MODEL = "model"


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Add the contrast between features to the loss of a batch."""

    mu: float
    temperature: float
    received: "torch.Tensor"  # features of the batch with the received weights
    previous: "torch.Tensor"  # features of the batch with the weights after the device's last training

    def __call__(self, loss: "torch.Tensor", found: ForwardPass) -> "torch.Tensor":
        """Return the loss plus μ · l."""
        from torch.nn.functional import cosine_similarity, softplus

        nearer = cosine_similarity(found.features, self.previous, dim=-1)
        nearer = nearer - cosine_similarity(found.features, self.received, dim=-1)
        return loss + self.mu * softplus(nearer / self.temperature).mean()


class Moon(FedAvg):
    """Pull the features of each device's model towards the received model's features, and away from the features of the
    device's last model. Average as FedAvg does.
    """

    class Options(MethodSettings):
        """Hold μ, the strength of the contrast, and τ, its temperature."""

        mu: NonNegativeFloat = 1.0
        """Strength μ of the contrast between features; 0 is FedAvg."""
        temperature: PositiveFloat = 0.5
        """Temperature τ by which cosines are divided."""

    has_personal_state = True
    trained_examples = one_training

    def refuses(self) -> Mapping[str, str]:
        """Refuse a model without a dense last layer."""
        return {"no dense last layer": "the method compares the inputs of the last layer"}

    async def local(self, work: Work) -> Outcome:
        """Train with the contrast, and keep the trained weights for the device's next round."""
        previous = work.personal.get(MODEL, work.start)
        trained = await work.compute(lambda: self._trained(work.steps(work.start), work.start, previous))
        return Outcome(
            weights=trained.weights,
            train_loss=trained.train_loss,
            measured=trained.measured,
            personal={MODEL: trained.weights},
        )

    def _trained(self, steps: Steps, received: Flat, previous: Flat) -> Trained:
        of_received, of_previous = steps.features(received), steps.features(previous)
        for batch in steps.batches():
            contrast = Contrast(
                mu=self.options.mu,
                temperature=self.options.temperature,
                received=of_received(batch),
                previous=of_previous(batch),
            )
            steps.move(steps.gradient(steps.weights, batch, contrast))
        return steps.trained()
