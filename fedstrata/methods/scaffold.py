"""SCAFFOLD (S. P. Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020).

The server keeps a control variate c, and device k keeps c_k. At first all are 0. In each round (Algorithm 1, option
II):

    y_k ← y_k − η (∇F_k(y_k) − c_k + c) for K steps from x,   c_k⁺ = c_k − c + (x − y_k) / (K η),
    x ← x + mean (y_k − x),   c ← c + |S| / N · mean (c_k⁺ − c_k),   c_k ← c_k⁺.

S are the devices that take part in the round, of N devices. So c is always the mean of all c_k.

c is sent as a table together with the model. With momentum m, a gradient moves the weights in its own step and, ever
less, in all later steps. So for s steps, K is the sum of (1 − m^j) / (1 − m) over j = 1 … s. Without momentum, K is s.

Departures: the weight of a device in each mean is its number of examples, and |S| / N is the share of examples. The
server's step size is 1. With several LPS rounds per global round, each LPS is the server of its devices in these
rounds, and N counts its devices. Then the GPS averages x and c over LPSs, so c is again the mean of all c_k.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedstrata.experiment.sections import TrainingSettings
from fedstrata.methods.base import JOINED_LATE_OR_LOST, Channel, Outcome, Reach, Trained, Work, all_layers, one_training
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.models import Model
from fedstrata.tensors import Flat, Layout

if TYPE_CHECKING:
    import torch

CONTROL = "control"


def controlled(
    gradient: "torch.Tensor", weights: "torch.Tensor", servers: "torch.Tensor", own: "torch.Tensor"
) -> "torch.Tensor":
    """Return the gradient − c_k + c. All tensors have the same shape."""
    return gradient.sub_(own).add_(servers)


class Scaffold(FedAvg):
    """Correct each step of a device by the difference between the device's mean gradient and the mean gradient of all
    devices.
    """

    has_personal_state = True
    trained_examples = one_training

    def refuses(self) -> Mapping[str, str]:
        """Refuse runs in which devices join or updates are lost, optimisers of servers, and noise on updates. Also
        refuse local optimisers such as Adam, because the steps of a device must be sums of gradients.
        """
        return {
            **dict.fromkeys(JOINED_LATE_OR_LOST, "the server's control variate would not be the mean of all variates"),
            "training.gps_optimiser": "the server's step also moves the control variate",
            "training.lps_optimiser": "the server's step also moves the control variate",
            "not plain SGD": "a device computes its mean gradient from its steps, which must be sums of gradients",
            "privacy.updates": "with noise the server's control variate is no longer the mean of the devices' variates",
        }

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return two channels: the whole model and the control variate, both averaged over all devices. An absent
        device adds the change 0 to the variate's mean.
        """
        control = Layout.of({CONTROL: (model.layout.size,)})
        variate = Channel(name=CONTROL, tensors=control, reach=Reach.EVERYWHERE, counts_absent=True)
        return (*all_layers(model, Reach.EVERYWHERE), variate)

    async def local(self, work: Work) -> Outcome:
        """Train with corrected gradients. The outcome also has a table: the server's control variate c, plus the change
        c_k⁺ − c_k of the device's control variate.
        """
        servers = work.tables[CONTROL]
        own = work.personal.get(CONTROL, np.zeros_like(servers))
        trained = await work.train(work.start, correct=controlled, beside=(servers, own))
        following = next_variate(work, trained, own - servers, self.facts.training)
        return Outcome(
            weights=trained.weights,
            train_loss=trained.train_loss,
            measured=trained.measured,
            personal={CONTROL: following},
            tables={CONTROL: servers + (following - own)},
        )


def next_variate(work: Work, trained: Trained, difference: Flat, training: TrainingSettings) -> Flat:
    """Return c_k⁺, a device's next control variate. `difference` is c_k − c."""
    mean = (work.start - trained.weights) / np.float32(trained.learning_rate * gradients_in(trained.steps, training))
    mean[work.model.trainable.size :] = 0  # statistics have no gradient
    return difference + mean


def gradients_in(steps: int, training: TrainingSettings) -> float:
    """Return K, the number of gradients in the sum of this many steps of SGD, with or without momentum."""
    momentum: float = getattr(training.optimiser, "momentum", 0.0)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
