"""pFedMe (C. T. Dinh, N. H. Tran and T. D. Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS
2020).

Each device has a model θ of its own near the global model. A local step draws one batch D (Algorithm 1)

    θ ← argmin_θ f(θ; D) + λ/2 ‖θ − w‖²,   w ← w − η λ (w − θ),

with `personal_steps` steps of gradient descent towards the minimum, each from the last θ; θ begins at w^t. η is the
learning rate of the experiment, and w is averaged over devices. The device uses the last θ, which is measured. The
server's step β of the paper is `training.gps_optimiser: {name: momentum, momentum: 0, learning_rate: β}`.

Departure: means are weighted by examples; in the paper all devices have the same weight.
"""

import numpy as np
from pydantic import Field, PositiveFloat

from fedstrata.methods.base import Measurement, MethodSettings, Outcome, Steps, Trained, Work
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.tensors.layout import Flat

MODEL = "model"


class PFedMe(FedAvg):
    """Move the global model towards personal models, which are pulled towards the global model."""

    class Options(MethodSettings):
        """Hold the pull, and the search for the personal model."""

        pull: PositiveFloat = 15.0
        """Strength λ of the pull of a device's own model towards the global one. λ · learning rate is below 2."""
        personal_steps: int = Field(default=5, ge=1)
        """Steps K towards the device's own model in each local step."""
        personal_rate: PositiveFloat = 0.1
        """Learning rate of these steps."""

    has_personal_state = True

    def _own(self, work: Work) -> Flat:
        """Return the personal model θ. If there is no θ yet, return the received weights."""
        own: Flat = work.personal.get(MODEL, work.start)
        return own

    async def local(self, work: Work) -> Outcome:
        """Train the global model by way of the personal model."""
        trained, own = await work.compute(lambda: self._trained(work.steps(work.start)))
        used = None if trained.measured is None else await work.measure(self._own(work))
        return Outcome.of_received(trained, used=used, personal={MODEL: own})

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
        return trained, np.concatenate([own.numpy(), trained.weights[len(own) :]])
