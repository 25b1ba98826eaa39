"""FedDyn (Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021).

Device k keeps g_k, the gradient of its loss at its last trained weights w_k. At first g_k is 0. In round t the device
minimises (Algorithm 1)

    L_k(w) − ⟨g_k, w⟩ + alpha / 2 · ‖w − w^t‖²   and then   g_k ← g_k − alpha (w_k − w^t),

and the server gives w^(t+1) = mean w_k − h / alpha, where h ← h − alpha · share · mean (w_k − w^t). The means are over
the devices that take part, and `share` is their part of all devices.

If devices may be absent, the server keeps h, as in the paper (`fedstrata.optimisers`, `dynamic`). If every device takes
part in every round, h is the mean of the g_k, because h and all g_k begin at 0. So then each device sends w_k − g_k /
alpha. The mean of these vectors is w^(t+1), and the server keeps no state.

The means, the share and the minimised sum of losses are weighted by examples. If all devices have equally many
examples, they are the same as in the paper. The method needs one server, so with several LPS rounds per global round it
needs a run with a single LPS.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import PositiveFloat

from fedstrata.experiment.sections import DynamicSettings
from fedstrata.methods.base import JOINED_LATE_OR_LOST, Facts, MethodSettings, Outcome, Work, one_training
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
    trained_examples = one_training

    def __init__(self, options: Any, facts: Facts) -> None:
        super().__init__(options, facts)
        if facts.absences:
            self.server_optimiser = DynamicSettings()

    def refuses(self) -> Mapping[str, str]:
        """Refuse optimisers of servers, and runs in which devices join or updates are lost. Also refuse asynchronous
        rounds, and rounds in which each LPS is a server.
        """
        absent = {
            "LPS rounds with topology": "with absent devices, the server must take its step after each LPS round",
            "averaged statistics": "the server's step could move a variance of batch normalisation below 0",
        }
        return {
            **dict.fromkeys(JOINED_LATE_OR_LOST, "the server's state would not be the mean of the devices' states"),
            "LPS rounds apart": "the method needs one server, and in these rounds each LPS is a server",
            "asynchronous rounds": "the server's step is for updates that all begin from its newest model",
            **(absent if self.facts.absences else {}),
            "training.gps_optimiser": "the method itself computes the server's step",
            "training.lps_optimiser": "the method itself computes the server's step",
            "privacy.updates": "with noise the state of the model no longer equals the mean of the devices' states",
        }

    async def local(self, work: Work) -> Outcome:
        """Train on the corrected loss, and return the trained weights. If no device is ever absent, return them minus
        g_k / alpha.
        """
        own = work.personal.get("gradient", np.zeros_like(work.start))
        trained = await work.train(work.start, correct=Dynamic(self.options.alpha), beside=(work.start, own))
        own = own - np.float32(self.options.alpha) * (trained.weights - work.start)
        own[work.model.trainable.size :] = 0  # statistics have no gradient
        step = 0 if self.facts.absences else own / np.float32(self.options.alpha)
        return Outcome(
            weights=trained.weights - step,
            train_loss=trained.train_loss,
            measured=trained.measured,
            personal={"gradient": own},
        )
