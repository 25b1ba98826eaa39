"""Calculate with the clock what LPS rounds cost if given devices are at one LPS."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from emulator.estimates.check import model_size, payloads_of
from emulator.estimates.check_times import exchanged_in, rounds_looked_at, trained_in
from emulator.planner.placement import Load
from fedstrata.clock.energy import JOULE_FJ, DeviceEnergy
from fedstrata.clock.timeline import DeviceTimeline, Part
from fedstrata.datasets import dataset_info, load_dataset
from fedstrata.experiment import Experiment
from fedstrata.methods.cohort import cohort
from fedstrata.partitions import example_counts

NS = 1e9
ROUNDS = 4  # LPS rounds of which the random draws are used


@dataclass(frozen=True, kw_only=True)
class GroupCost:
    """Hold the costs of a mean LPS round of the devices at one LPS."""

    seconds: float
    joules: float


class GroupCosts:
    """Calculate the costs of groups of devices, each at one LPS. All LPSs have equal links, so the LPS changes no cost.

    If all rounds take each device equally long, only one round is calculated.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._payloads = payloads_of(experiment, model_size(experiment, dataset_info(experiment.data)))
        self._experiment, self._ids = experiment, experiment.device_ids()
        self._timeline, self._energy = DeviceTimeline(experiment), DeviceEnergy(experiment)
        self._known: dict[frozenset[int], GroupCost] = {}
        self.calculated = 0  # number of devices' parts of rounds
        counts = example_counts(experiment, load_dataset(experiment.data, experiment.seed))
        self._sent = [
            exchanged_in(experiment, self._payloads, None, trained_in(experiment, counts, number))
            for number in range(min(ROUNDS, rounds_looked_at(experiment.training, None)))
        ]
        first, *others = [self._alone(number) for number in range(len(self._sent))]
        self.parts = first  # of each device in the first round, if no other device used the links
        is_random = experiment.training.participation is not None or any(
            (one.down_ns, one.compute_ns, one.up_ns) != (other.down_ns, other.compute_ns, other.up_ns)
            for parts in others
            for one, other in zip(first, parts, strict=True)
        )
        self._rounds = range(len(self._sent) if is_random else 1)

    def _alone(self, number: int) -> list[Part]:
        timed = self._timeline.round(number, 0)
        return [timed.update_alone(name, each) for name, each in zip(self._ids, self._sent[number], strict=True)]

    def of(self, group: Collection[int]) -> GroupCost:
        """Return the costs of a group."""
        key = frozenset(group)
        if key not in self._known:
            self._known[key] = self._calculated(sorted(key))
        return self._known[key]

    def _calculated(self, group: list[int]) -> GroupCost:
        lasted = spent = 0
        for number in self._rounds:
            asked = cohort(group, self._experiment.training.participation, self._experiment.seed, number)
            sent = self._sent[number]
            times = self._timeline.round(number, 0).times({self._ids[index]: sent[index] for index in asked})
            lasted += times.ends_ns
            spent += sum(self._energy.of(flow).total for flow in times.flows)
            self.calculated += len(asked)
        rounds = len(self._rounds)
        return GroupCost(seconds=lasted / rounds / NS, joules=spent / rounds / JOULE_FJ)

    @property
    def alone_s(self) -> float:
        """The seconds that the slowest device takes if no other uses the links."""
        return max(part.ended_ns for part in self.parts) / NS

    @property
    def loads(self) -> list[Load]:
        """The loads of all devices on the links that the devices of an LPS share.

        A device sends after it alone has received and computed. After it has received, it alone computes and sends.
        """
        shared = self._experiment.links.shared
        if shared is None:
            return []
        rates, found = shared.device_lps, []
        if rates.up_rate is not None:
            sent = np.array([8 * part.sends_bytes / rates.up_rate for part in self.parts])
            found.append(Load(seconds=sent, besides=np.array([part.ready_ns / NS for part in self.parts])))
        if rates.down_rate is not None and not rates.broadcast:
            got = np.array([8 * part.exchanged.down_bytes / rates.down_rate for part in self.parts])
            after = np.array([(part.ended_ns - part.received_ns) / NS for part in self.parts])
            found.append(Load(seconds=got, besides=after))
        return found
