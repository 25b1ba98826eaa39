"""APFL (Y. Deng, M. M. Kamani and M. Mahdavi, Adaptive Personalized Federated Learning, 2020, arXiv 2003.13461).

Each device uses a mix v̄ = α v + (1 − α) w of a model v of its own and the global model w. A local step moves both with
one batch (Algorithm 1)

    w ← w − η ∇f(w),   v ← v − η α ∇f(v̄)   (the gradient of f(v̄) with respect to v),

and w is averaged over devices. v stays on the device. After the first step of a round α also moves, against its own
gradient:

    α ← α − η ⟨v − w, ∇f(v̄)⟩, kept in [0, 1].

The mix is measured. v begins with the first weights that the device receives.

Departure: means are weighted by examples; in the paper all devices have the same weight.
"""

import numpy as np
from pydantic import Field

from fedstrata.methods.base import Measurement, MethodSettings, Outcome, Steps, Trained, Work
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.tensors.layout import Flat

MODEL, SHARE = "model", "share"
PERSONAL_STREAM = 1  # what its optimiser keeps is apart from that of the global model


class Apfl(FedAvg):
    """Train a mix of the global model and a model of the device's own in addition to FedAvg."""

    class Options(MethodSettings):
        """Hold the share α of the device's own model v in the mix, and whether α moves."""

        alpha: float = Field(default=0.5, gt=0, le=1)
        """Share α of the device's own model in the mix, at first."""
        adaptive: bool = True
        """Whether each device moves its share in each round."""

    has_personal_state = True

    def _own(self, work: Work) -> tuple[Flat, float]:
        """Return v and α. If there is no v yet, return the received weights."""
        return work.personal.get(MODEL, work.start), float(work.personal.get(SHARE, [self.options.alpha])[0])

    def _mixed(self, work: Work) -> Flat:
        own, alpha = self._own(work)
        mixed: Flat = np.float32(alpha) * own + np.float32(1 - alpha) * work.start
        return mixed

    async def local(self, work: Work) -> Outcome:
        """Train the global model and the device's own model on the same batches."""
        own, alpha = self._own(work)
        everybodys, mine, alpha = await work.compute(
            lambda: self._trained(work.steps(work.start), work.steps(own, stream=PERSONAL_STREAM), alpha)
        )
        used = None if everybodys.measured is None else await work.measure(self._mixed(work))
        personal = {MODEL: mine.weights, SHARE: np.array([alpha])}
        return Outcome.of_received(everybodys, used=used, personal=personal)

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Measure the mix, and the received global model."""
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
