"""FedDyn (Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021).

Device k keeps g_k, the gradient of its loss at its last trained weights w_k. At first g_k is 0. In round t the device
minimises (Algorithm 1)

    L_k(w) − ⟨g_k, w⟩ + alpha / 2 · ‖w − w^t‖²   and then   g_k ← g_k − alpha (w_k − w^t),

and the server gives w^(t+1) = mean w_k − h / alpha, where h ← h − alpha · mean (w_k − w^t). Because h and all g_k begin
at 0, h is the mean of the g_k. So here each device sends w_k − g_k / alpha. The mean of these vectors is w^(t+1), and
the server keeps no state. This is exact if every device takes part in every round. If a device is absent, the paper's h
still contains the device's g_k, but the mean of the sent vectors does not. So the method refuses
`training.participation`, devices that leave, quorums below 1, and newcomers that train. With several LPS rounds per
global round, the method needs a run with a single LPS, which is then the server. The means and the minimised sum of
losses are weighted by examples. If all devices have equally many examples, they are the same as in the paper.
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
    """Correct a gradient: add the gradient of − ⟨g_k, w⟩ + alpha / 2 · ‖w − received‖²."""

    alpha: float

    def __call__(
        self, gradient: "torch.Tensor", weights: "torch.Tensor", received: "torch.Tensor", own: "torch.Tensor"
    ) -> "torch.Tensor":
        """Return the corrected gradient. All tensors have the same shape."""
        return gradient.sub_(own).add_(weights, alpha=self.alpha).sub_(received, alpha=self.alpha)


class FedDyn(FedAvg):
    """Correct the loss of each device, so that all devices approach the minimum of the mean loss."""

    class Options(MethodSettings):
        """Hold the strength of the regularisation, α. A smaller α makes larger steps."""

        alpha: PositiveFloat = 0.1
        """Strength α of the regularisation; smaller values make larger steps."""

    has_personal_state = True

    def refuses(self) -> Mapping[str, str]:
        """Refuse optimisers of servers, and runs in which devices may be absent. All devices must take part, because
        the mean of all g_k replaces the server's state.
        """
        return {
            **dict.fromkeys(EVERYBODY, "the method's mean is right only if every device takes part in every round"),
            "LPS rounds apart": "the method needs one server, and in these rounds each LPS is a server",
            "training.gps_optimiser": "the method itself computes the server's step",
            "training.lps_optimiser": "the method itself computes the server's step",
            "privacy.updates": "with noise the state of the model no longer equals the mean of the devices' states",
        }

    async def local(self, work: Work) -> Outcome:
        """Train on the corrected loss, and return the trained weights minus g_k / alpha."""
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
