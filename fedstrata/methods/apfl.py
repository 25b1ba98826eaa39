"""APFL (Y. Deng, M. M. Kamani and M. Mahdavi, Adaptive Personalized Federated Learning, 2020, arXiv 2003.13461).

Each device uses the mix v̄ = α v + (1 − α) w of its own model v and the global model w. A local step changes both
models with one batch (Algorithm 1):

    w ← w − η ∇f(w),   v ← v − η α ∇f(v̄)   (the gradient of f(v̄) with respect to v).

The servers average w over devices, and v stays on the device. After the first step of each round, the device also
changes α:

    α ← α − η ⟨v − w, ∇f(v̄)⟩, kept in [0, 1].

Devices measure the mixed model v̄, which they use. The first value of v is the first model that the device receives.

Departure: the weight of a device in each mean is its number of examples. In the paper all devices have the same weight.
"""

import numpy as np
from pydantic import Field

from fedstrata.methods.base import Measurement, MethodSettings, Outcome, Steps, Trained, Work
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.tensors.layout import Flat

MODEL, SHARE = "model", "share"
PERSONAL_TRAINING = 1  # the device's own model has its own optimiser state


class Apfl(FedAvg):
    """Train a global model by FedAvg, and on each device a second model. Each device uses a mix of both models."""

    class Options(MethodSettings):
        """Hold the share α of the device's own model v in the mix, and whether training changes α."""

        alpha: float = Field(default=0.5, gt=0, le=1)
        """First value of α, the share of the device's own model in the mix."""
        adaptive: bool = True
        """If true, each device changes its α in each round."""

    has_personal_state = True

    def _own(self, work: Work) -> tuple[Flat, float]:
        """Return v and α. Before the device's first training, v is the received model, and α is the option `alpha`."""
        return work.personal.get(MODEL, work.start), float(work.personal.get(SHARE, [self.options.alpha])[0])

    def _mixed(self, work: Work) -> Flat:
        own, alpha = self._own(work)
        mixed: Flat = np.float32(alpha) * own + np.float32(1 - alpha) * work.start
        return mixed

    async def local(self, work: Work) -> Outcome:
        """Train the global model and the device's own model on the same batches."""
        own, alpha = self._own(work)
        everybodys, mine, alpha = await work.compute(
            lambda: self._trained(work.steps(work.start), work.steps(own, number=PERSONAL_TRAINING), alpha)
        )
        used = None if everybodys.measured is None else await work.measure(self._mixed(work))
        personal = {MODEL: mine.weights, SHARE: np.array([alpha])}
        return Outcome.of_received(everybodys, used=used, personal=personal)

    def trained_examples(self, examples: int, lps_round: int) -> int:
        """Return twice the number of examples in all steps, because each batch gives a gradient of both models."""
        return 2 * self.facts.training.trained_examples(examples)

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Measure the mixed model v̄, which the device uses, and the received global model."""
        return await work.measure(self._mixed(work)), await work.measure(work.start)

    def _trained(self, everybodys: Steps, mine: Steps, alpha: float) -> tuple[Trained, Trained, float]:
        following = alpha
        for number, batch in enumerate(everybodys.batches()):
            own, weights, alpha = mine.weights, everybodys.weights, following
            gradient = mine.gradient(alpha * own + (1 - alpha) * weights, batch)
            if self.options.adaptive and number == 0:
                slope = float((own - weights).double() @ gradient.double())
                following = min(1.0, max(0.0, alpha - everybodys.learning_rate * slope))
            everybodys.move(everybodys.gradient(weights, batch))
            mine.move(alpha * gradient)
        return everybodys.trained(), mine.trained(), following
