"""Per-FedAvg (A. Fallah, A. Mokhtari and A. Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach, NeurIPS 2020).

Devices train weights w that are good after one further step of gradient descent on a device's own data. A local step
draws three batches D, D' and D'' (Algorithm 1):

    w̃ ← w − α ∇f(w; D),   g = ∇f(w̃; D'),   w ← w − β (g − α d),

where d estimates ∇²f(w) g: variant `hf` takes d = (∇f(w + δ g; D'') − ∇f(w − δ g; D'')) / (2 δ), and `fo` takes d = 0.
β is the learning rate of the experiment. A device uses and measures the adapted model w − α ∇f(w; one batch), then
deletes it.

Departure: the weight of a device in each mean is its number of examples. In the paper all devices have the same weight.
"""

from typing import Literal

import numpy as np
from pydantic import Field, PositiveFloat

from fedstrata.methods.base import Measurement, MethodSettings, Outcome, Steps, Trained, Work
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.tensors.layout import Flat
from fedstrata.tensors.processor import read

SECOND, THIRD, ADAPTING = 1, 2, 3  # streams of the batches D' and D'', and of the adaptation


class PerFedAvg(FedAvg):
    """Train a global model that is good after each device has adapted it by one step."""

    class Options(MethodSettings):
        """Hold the length of the step that adapts the model to a device, and the estimate of second derivatives."""

        alpha: PositiveFloat = 0.01
        """Length α of the step that adapts the model to a device."""
        variant: Literal["fo", "hf"] = "hf"
        """`hf` estimates second derivatives by two more gradients; `fo` leaves them out."""
        delta: float = Field(default=1e-3, gt=0, le=1)
        """Factor δ of `hf`: the two further gradients are computed at w ± δ g, where g is the gradient at the adapted
        weights.
        """

    discarded = frozenset({ADAPTING})

    async def local(self, work: Work) -> Outcome:
        """Train the global model so that the adapted model improves. If the round is measured, also measure the adapted
        model.
        """
        trained = await work.compute(lambda: self._trained(work.steps(work.start)))
        used = None if trained.measured is None else await work.measure(await self._adapted(work))
        return Outcome.of_received(trained, used=used)

    def trained_examples(self, examples: int, lps_round: int) -> int:
        """Return the number of examples in all gradients: two gradients per step, and with `hf` two more."""
        gradients = 4 if self.options.variant == "hf" else 2
        return gradients * self.facts.training.trained_examples(examples)

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Measure the adapted model, and the received model."""
        return await work.measure(await self._adapted(work)), await work.measure(work.start)

    def _trained(self, steps: Steps) -> Trained:
        alpha, delta = self.options.alpha, self.options.delta
        for first, second, third in zip(steps.batches(), steps.batches(SECOND), steps.batches(THIRD), strict=True):
            weights = steps.weights
            gradient = steps.gradient(weights - alpha * steps.gradient(weights, first), second)
            if self.options.variant == "hf":
                beyond, before = (steps.gradient(weights + by * gradient, third) for by in (delta, -delta))
                gradient = gradient - alpha * (beyond - before) / (2 * delta)
            steps.move(gradient)
        return steps.trained()

    async def _adapted(self, work: Work) -> Flat:
        def adapted() -> Flat:
            steps, weights = work.steps(work.start, number=ADAPTING), work.start.copy()
            gradient = steps.gradient(steps.weights, next(steps.batches()))
            weights[: len(gradient)] -= np.float32(self.options.alpha) * read(gradient)
            return weights

        return await work.compute(adapted)
