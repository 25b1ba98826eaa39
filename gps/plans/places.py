"""The cluster and the LPS of each device. They follow from the plans, from the clusters of late devices, and from the
moves of devices.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedstrata.experiment import Experiment
from fedstrata.methods import Candidate, Method, Plan
from fedstrata.privacy.updates import weight_of
from fedstrata.streams.homes import are_placed_by_index, home_of, homes_of, lps_known, spans_lps
from gps.devices.roster import Device, Roster
from gps.journal.journal import Journal
from gps.plans.plan import Plans, cluster_of


def home_name(number: int) -> str:
    """Return the name of the LPS with this number. The group of the LPS's devices (their home) has the same name. The
    group keeps its name even if another LPS adopts the devices.
    """
    return f"lps-{number}"


def _ids(devices: Sequence[Device]) -> list[str]:
    return [device.device_id for device in devices]


def described(experiment: Experiment, devices: Sequence[Device]) -> list[Candidate]:
    """Return devices as `Candidate` objects, the form in which the code of a method receives devices."""
    tasks = experiment.task_of_devices()
    return [
        Candidate(
            device_index=device.device_index,
            num_examples=device.num_examples,
            true_task=tasks[device.device_index] if tasks else None,
        )
        for device in devices
    ]


class Move(NamedTuple):
    """Hold the move of a device from the LPS `before` to the LPS `now`, and the global round from which the
    move holds.
    """

    global_round: int
    device_index: int
    before: int
    now: int


class Places:
    """Compute the cluster and the LPS of each device from the journal, at the start and after each change. The results
    are in `Device.cluster` and `Device.home`.

    A device's cluster follows from the newest plan, and its LPS from the first plan. So a device keeps its LPS when a
    later plan changes its cluster. Only moves of the schedule change its LPS.
    """

    def __init__(self, experiment: Experiment, method: Method, roster: Roster, journal: Journal) -> None:
        self._experiment = experiment
        self._method = method
        self._roster = roster
        self.plans = Plans(method, journal)
        self._journal = journal
        self.spans_lps = spans_lps(experiment, method)
        self._moves: list[Move] = []
        self._left: set[tuple[int, int]] = set()  # (LPS, index of a device that has left it)
        self._members: Mapping[str, list[Device]] = {}  # the devices by LPS
        self.homes: Mapping[str, list[str]] = {}  # device ids by LPS
        # Device ids by cluster. A cluster with an LPS of its own has that LPS's name.
        self.clusters: Mapping[str, list[str]] = {}
        self._arrange()

    @property
    def version(self) -> int:
        """The version of the plan. It increases with every change that LPSs must learn of, but not at a restart."""
        return self._journal.plans.version()

    def _arrange(self) -> None:
        """Set the cluster and the LPS (`home`) of each device, and the global round from which a late device takes
        part.

        Device ids are also grouped here, in index order, because the GPS needs the groups many times per second.
        """
        clusters, homes, moves = dict[int, int](), dict[int, int](), list[Move]()
        for index, cluster, home, global_round in self._journal.plans.placed():  # late devices
            self._roster.devices[index].from_global_round = global_round
            clusters[index], homes[index] = cluster, home
        clusters.update(cluster_of(self.plans.newest))
        if self.plans.first is not None:
            for number, members in enumerate(homes_of(self._experiment, self._method, self.plans.first.clusters)):
                homes.update(dict.fromkeys(members, number))
        for global_round, index, home in self._journal.plans.moves():
            moves.append(Move(global_round, index, before=homes[index], now=home))
            self._left.add((homes[index], index))
            homes[index] = home
        self._moves = moves
        by_home, by_cluster = defaultdict[int, list[Device]](list), defaultdict[int, list[Device]](list)
        for index, device in sorted(self._roster.devices.items()):  # a copy: a device may enrol meanwhile
            device.cluster, device.home = clusters.get(index), homes.get(index)
            if device.home is not None:
                by_home[device.home].append(device)
            if device.cluster is not None:
                by_cluster[device.cluster].append(device)
        self._members = {home_name(number): by_home[number] for number in sorted(by_home)}
        self.homes = {name: _ids(devices) for name, devices in self._members.items()}
        self.clusters = {self.cluster_name(number): _ids(by_cluster[number]) for number in sorted(by_cluster)}

    # --- changes ----------------------------------------------------------------------------------

    def make(self, global_round: int, plan: Plan) -> None:
        """Use a plan from now on. `global_round` is the global round in which the plan was made, or `BEFORE` for a plan
        from before training. Raises PluginError if the plan cannot be written.
        """
        self.plans.add(global_round, plan)
        self._arrange()

    def go_back_to(self, global_round: int) -> None:
        """Delete the plans and moves of all global rounds after `global_round`, because the GPS continues from that
        global round again.
        """
        taken_back = [move for move in self._moves if move.global_round > global_round]
        if taken_back or self.plans.is_planned(global_round + 1):
            self._left.update((move.now, move.device_index) for move in taken_back)
            self.plans.forget_after(global_round)
            self._arrange()

    def place(self, device: Device, cluster: int, from_global_round: int) -> None:
        """Add a late device to a cluster. The device takes part from `from_global_round` on."""
        home = home_of(self._experiment, device.device_index) if self.spans_lps else cluster
        self._journal.plans.place(device.device_index, cluster=cluster, home=home, global_round=from_global_round)
        self._arrange()

    def move(self, global_round: int, homes: Mapping[int, int]) -> list[str]:
        """Move devices to other LPSs from a global round on. `homes` maps the index of a device to the
        number of the LPS to which the device belongs from then on. Return the ids of the devices that change their LPS.

        A device that its LPS has refused until the end of the run is not moved, because the new LPS would wait for the
        device.
        """
        refused = self._journal.refused_in_training()
        devices = [self._roster.devices[index] for index in sorted(homes) if index in self._roster.devices]
        moving = [
            device
            for device in devices
            if device.home not in {None, homes[device.device_index]} and device.device_id not in refused
        ]
        if moving:
            self._journal.plans.move(global_round, [(d.device_index, homes[d.device_index]) for d in moving])
            self._arrange()
        return [device.device_id for device in moving]

    def moves(self) -> list[tuple[int, str, str, str]]:
        """Return each move of a device: the first global round at the new LPS, the device's id, the old LPS and the new
        LPS.
        """
        ids = self._experiment.device_ids()
        return [(m.global_round, ids[m.device_index], home_name(m.before), home_name(m.now)) for m in self._moves]

    def left(self, home: str) -> set[str]:
        """Return the ids of the devices that once belonged to this LPS and were moved away. Some of these devices may
        have been moved back.
        """
        return {self._roster.devices[index].device_id for number, index in self._left if home_name(number) == home}

    # --- devices ----------------------------------------------------------------------------------

    def candidates(self) -> list[Candidate]:
        """Return the devices that are in clusters, by index."""
        there = [device for _, device in sorted(self._roster.devices.items()) if device.cluster is not None]
        return described(self._experiment, there)

    def weight(self, device: Device) -> int:
        """Return the weight that a device's update has when updates are averaged."""
        return weight_of(self._experiment, device.num_examples)

    @property
    def held_out(self) -> int:
        """The number of examples on which all devices together measure models."""
        return sum(device.num_held_out for device in self._roster.devices.values())

    # --- clusters and LPSs ------------------------------------------------------------------------

    @property
    def lps_known(self) -> int:
        """The number of LPSs that the run needs. The number is 0 while it depends on a plan that is not made yet."""
        if self.plans.is_made and not are_placed_by_index(self._experiment, self._method):
            return len(self.homes)
        return lps_known(self._experiment, self._method)

    def cluster_name(self, number: int) -> str:
        """Return the name of a cluster."""
        return f"cluster-{number}" if self.spans_lps else home_name(number)

    def members(self, home: str) -> list[Device]:
        """Return the devices that belong to an LPS, in index order."""
        return self._members.get(home, [])

    def joined(self, home: str, global_round: int) -> list[Device]:
        """Return the devices of an LPS that take part in this global round, in index order. A late device may have a
        place at the LPS long before its first global round.
        """
        return [device for device in self.members(home) if device.from_global_round <= global_round]

    def examples(self, global_round: int) -> dict[str, int]:
        """Return, by LPS, the sum of the weights of its devices that have joined by this global round."""
        return {name: sum(map(self.weight, self.joined(name, global_round))) for name in self.homes}

    def pods(self) -> dict[str, list[str]]:
        """Return, by pod name, the LPSs to which the pod's devices belong."""
        numbers: dict[str, set[int]] = defaultdict(set)
        for device in self._roster.devices.values():
            if device.pod_name and device.home is not None:
                numbers[device.pod_name].add(device.home)
        return {pod: [home_name(number) for number in sorted(found)] for pod, found in numbers.items()}
