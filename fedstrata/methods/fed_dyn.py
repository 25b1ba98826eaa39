"""FedDyn (Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021).

Device k keeps g_k, the gradient of its loss where it last arrived, from 0 on. In round t it minimises (Algorithm 1)

    L_k(w) − ⟨g_k, w⟩ + alpha / 2 · ‖w − w^t‖²   and then   g_k ← g_k − alpha (w_k − w^t),

and the server gives w^(t+1) = mean w_k − h / alpha, where h ← h − alpha · mean (w_k − w^t). As h and all g_k begin at
0, h is the mean of the g_k. So here each device sends w_k − g_k / alpha, and the mean of those is w^(t+1): the server
keeps nothing of its own. It holds where every device takes part in every round: of one that is away the paper's h keeps
g_k, and this mean has none. So participation, devices that leave and newcomers are refused. With several rounds of an
LPS in a global round it holds if there is one LPS, which is the server then. Means are by examples, and so is the sum
of losses that is minimised; with as many examples everywhere it is the paper's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import PositiveFloat

from fedstrata.methods.base import EVERYBODY, MethodSettings, Outcome, Work
from fedstrata.methods.fed_avg import FedAvg

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Dynamic:
    """Corrects a gradient by the gradient of − ⟨g_k, w⟩ + alpha / 2 · ‖w − received‖²."""

    alpha: float

    def __call__(
        self, gradient: "torch.Tensor", weights: "torch.Tensor", received: "torch.Tensor", own: "torch.Tensor"
    ) -> "torch.Tensor":
        """Return the corrected gradient; all of one shape."""
        return gradient.sub_(own).add_(weights, alpha=self.alpha).sub_(received, alpha=self.alpha)


class FedDyn(FedAvg):
    """Correct the loss of each device until all devices agree on the minimum of the mean loss."""

    class Options(MethodSettings):
        """The strength of the regularisation; the smaller, the larger the steps."""

        alpha: PositiveFloat = 0.1
        """Strength α of the regularisation; the smaller, the larger the steps."""

    has_personal_state = True

    def refuses(self) -> Mapping[str, str]:
        """One server with a rule of its own; the mean of all g_k replaces its state."""
        return {
            **dict.fromkeys(EVERYBODY, "the method's mean is right only if every device takes part in every round"),
            "LPS rounds apart": "the method has one server, and in these rounds each LPS is one",
            "training.gps_optimiser": "the method is the server's rule itself",
            "training.lps_optimiser": "the method is the server's rule itself",
            "privacy.updates": "with noise the mean of what devices keep is no longer what the model has of them",
        }

    async def local(self, work: Work) -> Outcome:
        """Gradient descent on the tilted loss; what leaves the device is trained weights minus g_k / alpha."""
        own = work.personal.get("gradient", np.zeros_like(work.start))
        trained = await work.train(work.start, correct=Dynamic(self.options.alpha), beside=(work.start, own))
        own = own - np.float32(self.options.alpha) * (trained.weights - work.start)
        own[work.model.trainable.size :] = 0  # statistics have no gradient
        return Outcome(
            weights=trained.weights - own / np.float32(self.options.alpha),
            train_loss=trained.train_loss,
            measured=trained.measured,
            personal={"gradient": own},
        )
