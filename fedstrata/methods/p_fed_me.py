"""pFedMe (C. T. Dinh, N. H. Tran and T. D. Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS
2020).

Each device has its own model θ, near the global model. A local step draws one batch D (Algorithm 1):

    θ ← argmin_θ f(θ; D) + λ/2 ‖θ − w‖²,   w ← w − η λ (w − θ).

`personal_steps` steps of gradient descent replace the exact minimum. They begin with the θ of the previous local step.
In a round, the first θ is the received w^t. η is the experiment's learning rate. The servers average w over devices.
The device uses and measures its last θ. For the paper's step β of the server, set `training.gps_optimiser: {name:
momentum, momentum: 0, learning_rate: β}`.

Departure: the weight of a device in each mean is its number of examples. In the paper all devices have the same weight.
"""

import numpy as np
from pydantic import Field, PositiveFloat

from fedstrata.methods.base import Measurement, MethodSettings, Outcome, Steps, Trained, Work
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.tensors.layout import Flat
from fedstrata.tensors.processor import read

MODEL = "model"


class PFedMe(FedAvg):
    """Train personal models that are pulled towards the global model, and move the global model towards them."""

    class Options(MethodSettings):
        """Hold how strongly a personal model is pulled towards the global model, and the steps that train it."""

        pull: PositiveFloat = 15.0
        """Strength λ of the pull of a device's own model towards the global model; λ · learning rate must be below 2.
        """
        personal_steps: int = Field(default=5, ge=1)
        """Number K of steps that train the device's own model within each local step."""
        personal_rate: PositiveFloat = 0.1
        """Learning rate of the steps that train the device's own model."""

    has_personal_state = True

    def _own(self, work: Work) -> Flat:
        """Return the personal model θ. Before its first training, return the received weights."""
        own: Flat = work.personal.get(MODEL, work.start)
        return own

    async def local(self, work: Work) -> Outcome:
        """Train the personal model, and move the global model towards it."""
        trained, own = await work.compute(lambda: self._trained(work.steps(work.start)))
        used = None if trained.measured is None else await work.measure(self._own(work))
        return Outcome.of_received(trained, used=used, personal={MODEL: own})

    def trained_examples(self, examples: int, lps_round: int) -> int:
        """Return the number of examples in all gradients: each batch gives `personal_steps` gradients."""
        return int(self.options.personal_steps) * self.facts.training.trained_examples(examples)

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Measure the device's personal model θ, and the received global model."""
        return await work.measure(self._own(work)), await work.measure(work.start)

    def _trained(self, steps: Steps) -> tuple[Trained, Flat]:
        pull, own = self.options.pull, steps.weights
        for batch in steps.batches():
            weights = steps.weights
            for _ in range(self.options.personal_steps):
                own = own - self.options.personal_rate * (steps.gradient(own, batch) + pull * (own - weights))
            steps.move(pull * (weights - own))
        trained = steps.trained()
        return trained, np.concatenate([read(own), trained.weights[len(own) :]])
