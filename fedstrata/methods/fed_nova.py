"""FedNova (J. Wang, Q. Liu, H. Liang, G. Joshi and H. V. Poor, Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization, NeurIPS 2020).

FedAvg moves the model further towards devices that take more steps. Here the change x_k − x of device k is divided by
a_k (‖a_i‖₁ in the paper). This number, a_k, counts the gradients in the sum of the device's steps. With p_k = n_k/n
(section 5 of the paper):

    x ← x + τ Σ_k p_k (x_k − x) / a_k,   τ = Σ_k p_k a_k.

The GPS knows n_k, so it calculates τ before training and sends τ to all devices. Each device sends τ/a_k times its
change, so FedAvg's mean is the sum above. For the value of a_k with momentum, see `gradients_in` of SCAFFOLD.

Departure: τ is the mean over the devices of the first plan, so without newcomers. In the paper it is the mean over the
devices of the round. Both are equal if no device is absent or new. Statistics of normalisation layers are averaged as
in FedAvg, without scaling.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedstrata.errors import PayloadError
from fedstrata.methods.base import Answers, Candidate, Moment, Outcome, Plan, Work
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.methods.scaffold import gradients_in

STEPS = "steps"


class FedNova(FedAvg):
    """Divide each device's change by its number of local steps, and multiply the mean by the mean number of steps."""

    def refuses(self) -> Mapping[str, str]:
        """Refuse local optimisers such as Adam, because the steps of a device must be sums of gradients. Also refuse
        noise on updates, because it would not protect the mean number of steps.
        """
        return {
            "not plain SGD": "a device divides its update by the number of gradients in the sum of its steps",
            "privacy.updates": "the mean number of steps reveals numbers of examples, and no noise covers it",
        }

    def tells(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """Declare the array that the GPS sends to all devices: τ, the mean number of steps, shape (1,)."""
        return {STEPS: ("float64", (1,))}

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Return a plan with one cluster, and with τ, the mean number of steps weighted by examples."""
        training, examples = self.facts.training, [device.num_examples for device in answers.devices]
        weighted = sum(count * gradients_in(training.steps(count), training) for count in examples)
        return replace(super().plan(moment, answers, before), told={STEPS: np.array([weighted / sum(examples)])})

    def place(self, late: Candidate, answers: Answers, plan: Plan) -> int:
        """Return 0, the number of the only cluster."""
        return 0

    async def local(self, work: Work) -> Outcome:
        """Train as FedAvg does. Then multiply the change of the weights by τ/a_k."""
        mean = work.told[STEPS]
        if not 0 < mean[0] < np.inf:
            raise PayloadError(f"the GPS sent {mean} as the mean number of steps; expected one finite number above 0")
        trained = await work.train(work.start)
        scale, weighted = mean[0] / gradients_in(trained.steps, self.facts.training), work.model.trainable.size
        weights = trained.weights.copy()
        weights[:weighted] = work.start[:weighted] + np.float32(scale) * (weights - work.start)[:weighted]
        return replace(Outcome.of(trained), weights=weights)
