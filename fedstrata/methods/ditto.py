"""Ditto (Li et al., Fair and Robust Federated Learning Through Personalization, ICML 2021).

Each device takes part in FedAvg, and also trains a model v of its own that is pulled towards the global model w^t
(Algorithm 1): v ← v − η (∇F(v) + pull · (v − w^t)). `pull` is the paper's λ. The device uses and measures v. The record
also has the measurement of w^t. The first value of v is the first model that the device receives.
"""

import asyncio

from pydantic import Field

from fedstrata.methods.base import Measurement, MethodSettings, NonNegativeFloat, Outcome, Pull, Work
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.tensors.layout import Flat

PERSONAL_TRAINING = 1  # the device's own model has its own draws of batches


class Ditto(FedAvg):
    """Train a personal model on each device in addition to FedAvg."""

    class Options(MethodSettings):
        """Hold the strength with which the personal model is pulled towards the global model, and the number of epochs
        for which the personal model is trained.
        """

        pull: NonNegativeFloat = 0.1
        """Strength λ of the pull of a device's own model towards the weights received; 0 is local training."""
        personal_epochs: int | None = Field(default=None, ge=1)
        """Epochs of the device's own model per round; without this key, the same number as of the global model."""

    has_personal_state = True

    def _own(self, work: Work) -> Flat:
        """Return the personal model v. Before its first training, return the received weights."""
        own: Flat = work.personal.get("model", work.start)
        return own

    async def local(self, work: Work) -> Outcome:
        """Train the global model and the personal model v in the same round."""
        everybodys, own = await asyncio.gather(
            work.train(work.start),
            work.train(
                self._own(work),
                correct=Pull(self.options.pull),
                beside=(work.start,),
                number=PERSONAL_TRAINING,
                epochs=self.options.personal_epochs,
            ),
        )
        return Outcome.of_received(everybodys, used=own.measured, personal={"model": own.weights})

    def trained_examples(self, examples: int, lps_round: int) -> int:
        """Return the number of examples in both trainings: of the global model and of the personal model."""
        training, epochs = self.facts.training, self.options.personal_epochs
        everybodys = training.trained_examples(examples)
        return everybodys + (epochs * training.epoch_examples(examples) if epochs is not None else everybodys)

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Measure the device's personal model v, and the received global model."""
        return await work.measure(self._own(work)), await work.measure(work.start)
