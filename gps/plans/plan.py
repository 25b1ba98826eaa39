"""The plans of a run, written through to the journal: which devices form which cluster, and hang on which LPS."""

import json
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from fedstrata.errors import PayloadError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.methods import Candidate, Method, Moment, Plan, Question
from fedstrata.privacy.updates import weight_of
from fedstrata.rpc.answers import TOLD, answer_to_proto, arrays_of
from fedstrata.streams.homes import home_of, homes_of, lps_known
from fedstrata.streams.streams import are_placed_by_index, shares_of, spans_lps
from fedstrata.v1 import answers_pb2
from gps.devices.roster import Device, Roster
from gps.journal.journal import BEFORE, Journal


def home_name(number: int) -> str:
    """Devices that hang on an LPS are called after it, unless another has adopted them."""
    return f"lps-{number}"


class Plans:
    """The plan now in force, and where it has put every device."""

    def __init__(self, experiment: Experiment, method: Method, roster: Roster, journal: Journal) -> None:
        self._experiment = experiment
        self._method = method
        self._roster = roster
        self._journal = journal
        self.spans_lps = spans_lps(experiment, method)
        self._made = {made_in: _plan(*row) for made_in, row in journal.plans().items()}
        placed_late = sum(device.is_late and device.cluster is not None for device in roster.devices.values())
        self._moved: dict[int, int] = {}  # by the global round of a plan, how many devices it has moved; once asked for
        self._moves = journal.moves()
        self._left = {(came_from, index) for _, index, came_from, _ in self._moves}
        self._busy_ns = self._busy_since_move()
        # grows with whatever LPSs have to hear of; the same after a restart
        self.version = max(1, len(self._made)) + placed_late + journal.versions_taken_back()
        self.version += len({global_round for global_round, *_ in self._moves})

    # --- plans ----------------------------------------------------------------------------------

    @property
    def is_made(self) -> bool:
        """Whether there is a plan."""
        return bool(self._made)

    @property
    def first(self) -> Plan | None:
        """The plan made before training."""
        return self._made.get(BEFORE)

    @property
    def rule(self) -> str:
        """How the clusters now in force were chosen."""
        return self.now.rule if self._made else ""

    @property
    def now(self) -> Plan:
        """The newest plan. Raises ValueError where none is made."""
        return self._made[max(self._made)]

    def before(self, global_round: int) -> Plan:
        """The plan in force as a global round begins. Raises KeyError where none is made."""
        return self._made[max(made_in for made_in in self._made if made_in < global_round)]

    def clusters_before(self, global_round: int) -> Mapping[int, int]:
        """The number of each device's cluster as a global round begins, by device index."""
        return _cluster_of(self.before(global_round)) if self._made else {}

    def of_round(self, global_round: int) -> Plan | None:
        """The plan made in a global round of what devices answered in it, if it is made."""
        return self._made.get(global_round)

    @property
    def planned_rounds(self) -> int:
        """In how many global rounds the plan is made."""
        return max(self._made, default=BEFORE) + 1

    def history(self) -> list[tuple[int, int, int]]:
        """Of each plan made in training: the global round, how many clusters, and how many devices changed theirs."""
        for earlier, made_in in pairwise(sorted(self._made)):
            if made_in not in self._moved:
                before, after = _cluster_of(self._made[earlier]), _cluster_of(self._made[made_in])
                self._moved[made_in] = sum(before.get(index, cluster) != cluster for index, cluster in after.items())
        return [(made_in, len(self._made[made_in].clusters), moved) for made_in, moved in sorted(self._moved.items())]

    def make(self, global_round: int, plan: Plan) -> None:
        """Write a plan down, made in a global round or `BEFORE` training; the first says where devices hang, too.

        Raises:
            PluginError: it cannot be written down.
        """
        written = _json(plan)
        self.told(plan)
        if global_round == BEFORE:
            for number, home in enumerate(homes_of(self._experiment, self._method, plan.clusters)):
                for index in home:
                    self._roster.devices[index].home = number
        for number, cluster in enumerate(plan.clusters):
            for index in cluster:
                self._roster.devices[index].cluster = number
        devices = self._roster.devices.values()
        places = [(d.cluster, d.home, d.device_index) for d in devices if d.cluster is not None]
        affinity = plan.affinity.astype("<f8").tobytes() if plan.affinity is not None else b""
        self._journal.set_plan(global_round, written, affinity, places)
        if self._made:
            self.version += 1
        self._made[global_round] = _plan(written, affinity)  # as a restarted GPS reads it

    def go_back_to(self, global_round: int) -> None:
        """Forget the plans of later global rounds than one that has to be done again."""
        later = [made_in for made_in in self._made if made_in > global_round]
        moved_back = [move for move in self._moves if move[0] > global_round]
        for made_in in later:
            del self._made[made_in]
            self._moved.pop(made_in, None)
        for _, index, came_from, _ in reversed(moved_back):
            self._roster.devices[index].home = came_from
        self._left.update((home, index) for _, index, _, home in moved_back)
        if later or moved_back:
            for number, cluster in enumerate(self.now.clusters):
                for index in cluster:
                    self._roster.devices[index].cluster = number
            places = [(d.cluster, d.home, i) for i, d in self._roster.devices.items()]
            versions = len(later) + len({made_in for made_in, *_ in moved_back}) + 1
            self._journal.forget_plans_after(global_round, places, versions=versions)
            self._moves = [move for move in self._moves if move[0] <= global_round]
            self._busy_ns = self._busy_since_move()
            self.version += 1

    def move(
        self, global_round: int, homes: Mapping[int, int], busy: Mapping[str, Mapping[int, int]] | None = None
    ) -> list[str]:
        """Let devices hang on other LPSs, given by index, from a global round on; gives the ids of those that move.

        One that an LPS has refused for the rest of the run stays: another would wait for it, as it knows of no refusal.
        `busy` says by LPS until when its devices are busy that have missed a deadline on the virtual clock.
        """
        refused = self._journal.refused_in_training()
        devices = {index: self._roster.devices[index] for index in sorted(homes) if index in self._roster.devices}
        there = {i: d for i, d in devices.items() if d.home is not None and d.device_id not in refused}
        moves = [(i, d.home, homes[i]) for i, d in there.items() if d.home is not None and d.home != homes[i]]
        if not moves:
            return []
        told = {index: (busy or {}).get(home_name(came_from), {}).get(index, 0) for index, came_from, _ in moves}
        self._journal.move(global_round, moves, {index: busy_ns for index, busy_ns in told.items() if busy_ns})
        for index, came_from, home in moves:
            devices[index].home = home
            self._moves.append((global_round, index, came_from, home))
            self._left.add((came_from, index))
        self._busy_ns = self._busy_since_move()
        self.version += 1
        return [devices[index].device_id for index, *_ in moves]

    def _busy_since_move(self) -> dict[int, int]:
        """By index of a device until when it was busy as it moved to where it is now."""
        newest = {index: made_in for made_in, index, *_ in self._moves}
        return {index: ns for made_in, index, ns in self._journal.moved_busy() if newest[index] == made_in}

    def busy_ns(self, device: Device) -> int:
        """Until when a device was busy on the virtual clock as it moved to where it is; 0 if it was not."""
        return self._busy_ns.get(device.device_index, 0)

    def moves(self) -> list[tuple[int, str, str, str]]:
        """Of each device that has moved: the global round from which on, its id, from which LPS and to which."""
        ids = self._experiment.device_ids()
        return [(made_in, ids[i], home_name(before), home_name(now)) for made_in, i, before, now in self._moves]

    def left(self, home: str) -> set[str]:
        """The ids of the devices that have hung on an LPS before, and been moved away, or back."""
        return {self._roster.devices[index].device_id for number, index in self._left if home_name(number) == home}

    def told(self, plan: Plan) -> answers_pb2.Answer | None:
        """What a plan tells all devices, as a message. Raises PluginError for what its method does not tell."""
        if not plan.told:
            return None
        question = Question(name=TOLD, moment=Moment.BEFORE, arrays=self._method.tells())
        answer = answer_to_proto(question, plan.told)
        try:
            arrays_of(question, answer)
        except PayloadError as error:
            raise PluginError(
                f"method {self._method.options.name} tells devices what it has not said: {error}"
            ) from None
        return answer

    @property
    def told_to_lpss(self) -> answers_pb2.Answer | None:
        """What LPSs with clusters of their own tell all devices; others have it with the streams of a global round."""
        return self.told(self.now) if self._made and not self.spans_lps else None

    @property
    def held_out(self) -> int:
        """How many examples all devices together measure models on."""
        return sum(device.num_held_out for device in self._roster.devices.values())

    def candidates(self) -> list[Candidate]:
        """The devices that a plan has put into clusters, by index."""
        return [self._candidate(d) for _, d in sorted(self._roster.devices.items()) if d.cluster is not None]

    def _candidate(self, device: Device) -> Candidate:
        tasks = self._experiment.task_of_devices()
        return Candidate(
            device_index=device.device_index,
            num_examples=device.num_examples,
            true_task=tasks[device.device_index] if tasks else None,
        )

    def described(self, devices: list[Device]) -> list[Candidate]:
        """Devices as a method sees them."""
        return [self._candidate(device) for device in devices]

    # --- clusters and LPSs ------------------------------------------------------------------------

    @property
    def lps_known(self) -> int:
        """How many LPSs the run needs as far as can be said now; 0 when the plan has to tell."""
        if self.is_made and not are_placed_by_index(self._experiment, self._method):
            return len(self.homes)
        return lps_known(self._experiment, self._method)

    @property
    def homes(self) -> dict[str, list[str]]:
        """Device ids, in index order, by the LPS that they hang on."""
        return {home_name(number): ids for number, ids in self._grouped("home").items()}

    @property
    def clusters(self) -> dict[str, list[str]]:
        """Device ids, in index order, by cluster; a cluster with an LPS of its own is called after it."""
        return {self.cluster_name(number): ids for number, ids in self._grouped("cluster").items()}

    def cluster_name(self, number: int) -> str:
        """What a cluster is called."""
        return f"cluster-{number}" if self.spans_lps else home_name(number)

    def _grouped(self, by: str) -> dict[int, list[str]]:
        found: dict[int, list[str]] = defaultdict(list)
        for _, device in sorted(self._roster.devices.items()):
            number = getattr(device, by)
            if number is not None:
                found[number].append(device.device_id)
        return {number: found[number] for number in sorted(found)}

    def members(self, home: str) -> list[Device]:
        """The devices that hang on an LPS, in index order."""
        return [
            device
            for _, device in sorted(self._roster.devices.items())
            if device.home is not None and home_name(device.home) == home
        ]

    def weight(self, device: Device) -> int:
        """How much a device counts in a mean."""
        return weight_of(self._experiment, device.num_examples)

    def examples(self, global_round: int) -> dict[str, int]:
        """For how many examples the devices of a global round stand that hang on each LPS."""
        return {
            name: sum(self.weight(d) for d in self.members(name) if d.from_global_round <= global_round)
            for name in self.homes
        }

    def shares(self, device: Device) -> Mapping[str, Mapping[int, int]]:
        """A device's weights by stream in the channels that are mixed, as they are now."""
        return shares_of(self.now, device.device_index) if self._made else {}

    @property
    def mixed(self) -> tuple[str, ...]:
        """The channels that are mixed now."""
        return tuple(self.now.weights) if self._made else ()

    @property
    def cluster_count(self) -> int:
        """How many clusters there are now."""
        return len(self.now.clusters) if self._made else 0

    def pods(self) -> dict[str, list[str]]:
        """By pod name the LPSs that the devices in it hang on."""
        numbers: dict[str, set[int]] = defaultdict(set)
        for device in self._roster.devices.values():
            if device.pod_name and device.home is not None:
                numbers[device.pod_name].add(device.home)
        return {pod: [home_name(number) for number in sorted(found)] for pod, found in numbers.items()}

    def place(self, device: Device, cluster: int, from_global_round: int) -> None:
        """Add a late device to a cluster."""
        device.cluster = cluster
        device.home = home_of(self._experiment, device.device_index) if self.spans_lps else cluster
        device.from_global_round = from_global_round
        self.version += 1
        self._journal.place(device.device_index, device.cluster, device.home)


def _cluster_of(plan: Plan) -> dict[int, int]:
    return {index: number for number, cluster in enumerate(plan.clusters) for index in cluster}


def _json(plan: Plan) -> str:
    fields: dict[str, Any] = {
        "clusters": [[int(index) for index in cluster] for cluster in plan.clusters],
        "rule": plan.rule,
        "parents": [int(parent) for parent in plan.parents],
        "weights": {
            name: [{int(index): float(share) for index, share in stream.items()} for stream in streams]
            for name, streams in plan.weights.items()
        },
        "offers": [[int(cluster) for cluster in offered] for offered in plan.offers],
        "withdrawn": list(plan.withdrawn),
        "told": {name: [array.dtype.name, array.tolist()] for name, array in plan.told.items()},
        "related": [int(index) for index in plan.related],
        "memory": dict(plan.memory),
    }
    try:
        return json.dumps(fields, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PluginError(f"a plan's memory holds JSON values and its weights are finite, and here: {error}") from None


def _plan(text: str, affinity: bytes) -> Plan:
    said = json.loads(text)
    side = len(said["related"])
    return Plan(
        clusters=tuple(tuple(cluster) for cluster in said["clusters"]),
        rule=said["rule"],
        parents=tuple(said["parents"]),
        weights={
            name: tuple({int(index): share for index, share in stream.items()} for stream in streams)
            for name, streams in said["weights"].items()
        },
        offers=tuple(tuple(offered) for offered in said["offers"]),
        withdrawn=tuple(said["withdrawn"]),
        told={name: np.array(values, dtype) for name, (dtype, values) in said["told"].items()},
        affinity=np.frombuffer(affinity, "<f8").reshape(side, side) if affinity else None,
        related=tuple(said["related"]),
        memory=said["memory"],
    )
