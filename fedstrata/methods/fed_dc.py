"""FedDC (L. Gao, H. Fu, L. Li, Y. Chen, M. Xu and C.-Z. Xu, FedDC: Federated Learning with Non-IID Data via Local Drift
Decoupling and Correction, CVPR 2022).

Device k keeps its drift h_k and a control variate c_k, and the server keeps c. At first all are 0. In each round device
k takes K steps from x to y_k with the gradient of

    F_k(y) + alpha / 2 · ‖y + h_k − x‖² + ⟨c − c_k, y⟩,

and then sets h_k ← h_k + y_k − x and c_k⁺ = c_k − c + (x − y_k) / (K η). The server gives

    x ← mean y_k + H,   c ← c + |S| / N · mean (c_k⁺ − c_k),

where S are the devices that take part in the round, of N devices. The means are over S, and H is the mean of the h_k of
all N devices. Control variates are as in SCAFFOLD, and H and c are as in the authors' program.

H moves by |S| / N · mean (y_k − x), so the server computes it without the h_k (`fedstrata.optimisers`, `dynamic`).

Departures: the weight of a device in each mean is its number of examples, and |S| / N is the share of examples. `alpha`
is equal for all devices. The authors' program divides it by a device's share of examples.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import PositiveFloat

from fedstrata.experiment.sections import DynamicSettings
from fedstrata.methods.base import JOINED_LATE_OR_LOST, Facts, MethodSettings, Outcome, Work, one_training
from fedstrata.methods.fed_dyn import Dynamic
from fedstrata.methods.scaffold import CONTROL, Scaffold, next_variate

DRIFT = "drift"


class FedDc(Scaffold):
    """Correct the steps of a device as SCAFFOLD does. Each device also keeps its drift from the received models.
    Training reduces the drift, and the server adds the mean drift to the mean model.
    """

    class Options(MethodSettings):
        """Hold α, the strength of the pull towards the received model minus the drift."""

        alpha: PositiveFloat = 0.1
        """Strength α of the pull towards the received weights minus the device's drift."""

    trained_examples = one_training

    def __init__(self, options: Any, facts: Facts) -> None:
        super().__init__(options, facts)
        self.server_optimiser = DynamicSettings()

    def refuses(self) -> Mapping[str, str]:
        """Refuse what SCAFFOLD refuses, averaged statistics of batch normalisation, and more than one server."""
        return {
            **super().refuses(),
            **dict.fromkeys(JOINED_LATE_OR_LOST, "the server's state would not be the mean of the devices' states"),
            "LPS rounds with topology": "the server must take its step after each LPS round",
            "LPS rounds apart": "the method needs one server, and in these rounds each LPS is a server",
            "training.gps_optimiser": "the method itself computes the server's step",
            "training.lps_optimiser": "the method itself computes the server's step",
            "averaged statistics": "the server's step could move a variance of batch normalisation below 0",
        }

    async def local(self, work: Work) -> Outcome:
        """Train with corrected gradients. As in SCAFFOLD, the outcome has a table with c + c_k⁺ − c_k. The device keeps
        its control variate and its drift.
        """
        nothing, servers = np.zeros_like(work.start), work.tables[CONTROL]
        own, drift = work.personal.get(CONTROL, nothing), work.personal.get(DRIFT, nothing)
        beside = (work.start - drift, own - servers)
        trained = await work.train(work.start, correct=Dynamic(self.options.alpha), beside=beside)
        following = next_variate(work, trained, own - servers, self.facts.training)
        drift = drift + (trained.weights - work.start)
        drift[work.model.trainable.size :] = 0  # statistics have no gradient
        return Outcome(
            weights=trained.weights,
            train_loss=trained.train_loss,
            measured=trained.measured,
            personal={CONTROL: following, DRIFT: drift},
            tables={CONTROL: servers + (following - own)},
        )
