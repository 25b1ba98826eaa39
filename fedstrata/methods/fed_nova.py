"""FedNova (J. Wang, Q. Liu, H. Liang, G. Joshi and H. V. Poor, Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization, NeurIPS 2020).

FedAvg moves the model further towards devices that take more steps. Here the change x_k − x of device k is divided by
a_k (‖a_i‖₁ in the paper). This number, a_k, counts the gradients in the sum of the device's steps. With p_k = n_k/n
(section 5 of the paper):

    x ← x + τ Σ_k p_k (x_k − x) / a_k,   τ = Σ_k p_k a_k.

The GPS knows n_k, so it calculates τ before training and sends τ to all devices. Each device sends τ/a_k times its
change, so FedAvg's mean is the sum above. For the value of a_k with momentum, see `gradients_in` of SCAFFOLD.

With `training.participation`, n and both sums are over the devices that the round asks. The GPS calculates τ for each
LPS round. All LPSs have the same τ, also if each LPS averages its own devices. Otherwise the GPS's mean would favour
LPSs with many steps, as FedAvg's mean favours devices with many steps.

Departure: τ ignores newcomers, late devices, and devices that leave or move to other LPSs. Statistics of normalisation
layers are averaged as in FedAvg, without scaling.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from fedstrata.errors import PayloadError
from fedstrata.methods.base import Answers, Candidate, Moment, Outcome, Plan, Work, one_training
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.methods.scaffold import gradients_in

STEPS = "steps"


class FedNova(FedAvg):
    """Divide each device's change by its number of local steps, and multiply the mean by the mean number of steps."""

    trained_examples = one_training

    def refuses(self) -> Mapping[str, str]:
        """Refuse local optimisers such as Adam, because the steps of a device must be sums of gradients. Also refuse
        noise on updates, because it would not protect the mean number of steps.
        """
        return {
            "not plain SGD": "a device divides its update by the number of gradients in the sum of its steps",
            "privacy.updates": "the mean number of steps reveals numbers of examples, and no noise covers it",
        }

    def tells(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """Declare the array that the GPS sends to all devices: τ, the mean number of steps, shape (1,). With
        `training.participation` it has the shape (LPS rounds,).
        """
        return {STEPS: ("float64", (self.facts.training.lps_rounds if self.facts.cohort(0) else 1,))}

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Return a plan with one cluster, and with τ, the mean number of steps weighted by examples."""
        counts = {device.device_index: device.num_examples for device in answers.devices}
        (rounds,) = self.tells()[STEPS][1]
        means = [self._mean_steps(counts, self.facts.cohort(number) or counts) for number in range(rounds)]
        return replace(super().plan(moment, answers, before), told={STEPS: np.array(means)})

    def _mean_steps(self, counts: Mapping[int, int], devices: Iterable[int]) -> float:
        """Return τ over these devices. `counts` has the number of examples of each device, by its index. New devices
        are missing in `counts`, and are left out. If all devices are new, return τ over all devices in `counts`.
        """
        training = self.facts.training
        examples = [counts[each] for each in devices if each in counts] or counts.values()
        return sum(count * gradients_in(training.steps(count), training) for count in examples) / sum(examples)

    def place(self, late: Candidate, answers: Answers, plan: Plan) -> int:
        """Return 0, the number of the only cluster."""
        return 0

    async def local(self, work: Work) -> Outcome:
        """Train as FedAvg does. Then multiply the change of the weights by τ/a_k."""
        mean = work.told[STEPS][work.lps_round if self.facts.cohort(work.lps_round) else 0]
        if not 0 < mean < np.inf:
            raise PayloadError(f"the GPS sent {mean} as the mean number of steps; expected a finite number above 0")
        trained = await work.train(work.start)
        scale, weighted = mean / gradients_in(trained.steps, self.facts.training), work.model.trainable.size
        weights = trained.weights.copy()
        weights[:weighted] = work.start[:weighted] + np.float32(scale) * (weights - work.start)[:weighted]
        return replace(Outcome.of(trained), weights=weights)
