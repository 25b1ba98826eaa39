"""FedDyn (Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021).

Device k keeps g_k, the gradient of its loss where it last arrived, from 0 on. In round t it minimises (Algorithm 1)

    L_k(w) − ⟨g_k, w⟩ + alpha / 2 · ‖w − w^t‖²   and then   g_k ← g_k − alpha (w_k − w^t),

and the server gives w^(t+1) = mean w_k − h / alpha, where h ← h − alpha · mean (w_k − w^t). As h and all g_k begin at
0, h is the mean of the g_k. So here each device sends w_k − g_k / alpha, and the mean of those is w^(t+1): the server
keeps nothing of its own. It holds where every device takes part in every round: of one that is away the paper's h keeps
g_k, and this mean has none. So participation, devices that leave and newcomers are refused. Means are by
examples, and so is the sum of losses that is minimised; with as many examples everywhere it is the paper's.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import PositiveFloat

from fedstrata.errors import ExperimentError
from fedstrata.methods.base import MethodSettings, Outcome, Work
from fedstrata.methods.fed_avg import FedAvg

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Dynamic:
    """Corrects a gradient by that of − ⟨g_k, w⟩ + alpha / 2 · ‖w − received‖²."""

    alpha: float

    def __call__(
        self, gradient: "torch.Tensor", weights: "torch.Tensor", received: "torch.Tensor", own: "torch.Tensor"
    ) -> "torch.Tensor":
        """The corrected gradient; all of one shape."""
        return gradient.sub_(own).add_(weights, alpha=self.alpha).sub_(received, alpha=self.alpha)


class FedDyn(FedAvg):
    """FedAvg whose devices' losses are tilted until they all have their minimum where the mean loss has its."""

    class Options(MethodSettings):
        """The strength of the regularisation; the smaller, the larger the steps."""

        alpha: PositiveFloat = 0.1

    has_personal_state = True
    bears_noise = False  # the mean of what devices keep would no longer be what the model has of them

    @property
    def needs_everybody(self) -> bool:
        """The mean of all g_k is what the server's h would be."""
        return True

    def check(self) -> None:
        """Every round in the cloud, and no other rule than this one."""
        training = self.facts.training
        if training.lps_rounds_per_global_round > 1:
            raise ExperimentError(
                f"training.lps_rounds_per_global_round is {training.lps_rounds_per_global_round}, and method feddyn "
                "has one server; say 1"
            )
        for key in ("gps_optimiser", "lps_optimiser"):
            if getattr(training, key).name != "none":
                raise ExperimentError(f"method feddyn is the server's rule itself; leave training.{key} out")

    async def local(self, work: Work) -> Outcome:
        """Gradient descent on the tilted loss; what leaves the device is trained weights minus g_k / alpha."""
        own = work.personal.get("gradient", np.zeros_like(work.start))
        trained = await work.train(work.start, correct=Dynamic(self.options.alpha), beside=(work.start, own))
        own = own - np.float32(self.options.alpha) * (trained.weights - work.start)
        return Outcome(
            weights=trained.weights - own / np.float32(self.options.alpha),
            train_loss=trained.train_loss,
            measured=trained.measured,
            personal={"gradient": own},
        )
