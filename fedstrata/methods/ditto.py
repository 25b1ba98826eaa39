"""Ditto (Li et al., Fair and Robust Federated Learning Through Personalization, ICML 2021).

Each device takes part in FedAvg and trains a model v of its own beside it, pulled towards the global one (Algorithm 1):
v ← v − η (∇F(v) + pull · (v − w^t)), their λ. What it uses, and what is measured, is v; the record tells of w^t, too.
v begins as the weights that the device receives first.
"""

import asyncio

from pydantic import Field

from fedstrata.methods.base import Measurement, MethodSettings, NonNegativeFloat, Outcome, Pull, Work
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.tensors.layout import Flat

PERSONAL_STREAM = 1  # its batches are drawn apart from those of the global model


class Ditto(FedAvg):
    """Train a personal model on each device beside FedAvg."""

    class Options(MethodSettings):
        """The strength of the pull of the personal model towards the global one; 0 is local training."""

        pull: NonNegativeFloat = 0.1
        """Strength λ of the pull of a device's own model towards the weights received; 0 is local training."""
        personal_epochs: int | None = Field(default=None, ge=1)
        """Epochs of the device's own model per round; without it as many as of the global model."""

    has_personal_state = True

    def _own(self, work: Work) -> Flat:
        """v; the weights received where there is none yet."""
        own: Flat = work.personal.get("model", work.start)
        return own

    async def local(self, work: Work) -> Outcome:
        """Train the global model and the personal one, from the same round's weights."""
        everybodys, own = await asyncio.gather(
            work.train(work.start),
            work.train(
                self._own(work),
                correct=Pull(self.options.pull),
                beside=(work.start,),
                stream=PERSONAL_STREAM,
                epochs=self.options.personal_epochs,
            ),
        )
        return Outcome(
            weights=everybodys.weights,
            train_loss=everybodys.train_loss,
            measured=own.measured,
            measured_received=everybodys.measured,
            personal={"model": own.weights},
        )

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Return the personal model, and the global one."""
        return await work.measure(self._own(work)), await work.measure(work.start)
