"""The devices of one LPS. Their list says which devices take part in a round, and to which streams their updates are
added.
"""

from collections.abc import Mapping

from fedstrata.clock.device_times import Presence
from fedstrata.errors import RunStoppedError
from fedstrata.experiment import Experiment
from fedstrata.methods.cohort import cohort
from fedstrata.rounds import ChildLimits, HeldOut
from fedstrata.rules import Shares, routed_shares
from fedstrata.streams.streams import Streams
from fedstrata.tasks import Task
from fedstrata.v1 import gps_service_pb2 as gps_pb


class Members:
    """Hold the newest list of this LPS's devices, which the GPS sends."""

    def __init__(self, experiment: Experiment, home: gps_pb.Cluster, presence: Presence) -> None:
        self._experiment = experiment
        self._home, self._term = home.home_id, home.term
        self._under_way: int | None = None  # the open global round, if clusters span LPSs
        self._presence = presence
        self._known: tuple[Streams, Mapping[str, int], Shares] | None = None  # the last result of `shares`
        self.take(home)

    def goes_on_with(self, home: gps_pb.Cluster | None) -> bool:
        """Return whether the open round can continue with the GPS's newest list of devices. `home` is this list. It is
        None if this LPS no longer serves the devices.

        The round cannot continue in two cases. In the first, another LPS has served the devices meanwhile; the list
        then has another term. In the second, the list has other devices for the open global round. This happens if the
        GPS goes back by one global round, and a move of devices is undone. The round would then wait for devices that
        now belong to another LPS.
        """
        if home is None or home.term != self._term:
            return False
        number = self._under_way
        if number is None:
            return True
        now = {member.device_id for member in home.members if member.from_global_round <= number}
        return now == set(self.in_global_round(number))

    def begin_global_round(self, number: int) -> None:
        """Note that a global round is open. While it is open, `goes_on_with` checks that a new list has the same
        devices for this round.
        """
        self._under_way = number

    def end_global_round(self) -> None:
        """Note that no global round is open. `goes_on_with` then accepts a new list with other devices."""
        self._under_way = None

    def take(self, home: gps_pb.Cluster) -> None:
        """Use a new list of devices. Each device takes part from its first global round on."""
        self._members = {member.device_id: member for member in home.members}
        self.mixed = tuple(home.mixed)  # the channels whose streams are linear mixes
        self.clusters = home.clusters  # the number of clusters, if clusters span LPSs
        self._known = None

    @property
    def ids(self) -> set[str]:
        """The ids of the devices."""
        return set(self._members)

    def has(self, device_id: str) -> bool:
        """Return whether a device belongs to this LPS."""
        return device_id in self._members

    def in_round(self, global_round: int, lps_round: int, now_ns: int = 0) -> dict[str, int]:
        """Return the devices that this LPS asks for an update in a round, with their numbers of examples. These are all
        present devices or, if the experiment has `training.participation`, some of the present devices.

        Raises:
            RunStoppedError: at `now_ns` on the clock, all devices have left and will not return.
        """
        back = self.present_from(global_round, now_ns)
        there = {name: count for name, count in self.in_global_round(global_round).items() if name in back}
        participation = self._experiment.training.participation
        if participation is None:
            return there
        indexes = {self._members[device_id].device_index: device_id for device_id in there}
        drawn = cohort(list(indexes), participation, self._experiment.seed, lps_round)
        return {indexes[index]: there[indexes[index]] for index in drawn}

    def present_from(self, global_round: int, now_ns: int) -> dict[str, int]:
        """Return the devices that take part in a round that begins at `now_ns`, with the time from which each device is
        present. If all devices are absent, the first devices to return take part.

        Raises:
            RunStoppedError: all devices have left and will not return.
        """
        indexes = {self.index_of(name): name for name in self.in_global_round(global_round)}
        there = self._presence.there(indexes, now_ns)
        if indexes and not there:
            raise RunStoppedError(
                f"schedule: at {now_ns / 1e9:g} s all devices of {self._home} have left for good; let one of them "
                "come back"
            )
        return {indexes[index]: at_ns for index, at_ns in there.items()}

    def in_global_round(self, global_round: int) -> dict[str, int]:
        """Return the devices that take part in a global round, with their numbers of examples."""
        return {m.device_id: m.num_examples for m in self._members.values() if m.from_global_round <= global_round}

    def examples(self, report: gps_pb.ReportHeader, global_round: int, lps_rounds: int) -> int:
        """Return the LPS's weight in a global round: the numbers of examples in its `lps_rounds` LPS rounds, added up.

        Each row of the report has the examples of one LPS round. A row is missing if the LPS that ran this LPS round is
        absent, or has lost its files. Then the examples of all devices that are asked for an update in this LPS round
        are used instead.
        """
        rows = {row.lps_round: row.num_examples for row in report.lps_rounds}
        first = global_round * lps_rounds
        return sum(
            rows[number] if number in rows else sum(self.in_round(global_round, number).values())
            for number in range(first, first + lps_rounds)
        )

    def limits(self, task: Task) -> ChildLimits:
        """Return the limits for devices' messages: the largest norm of an update, and each device's number of held-out
        examples.
        """
        held_out = {device_id: member.num_held_out for device_id, member in self._members.items()}
        return ChildLimits(self._experiment.limits.max_update_norm, HeldOut(examples=held_out, task=task))

    def clusters_of(self) -> dict[str, int]:
        """Return, by device id, the number of the device's cluster."""
        return {device_id: member.cluster for device_id, member in self._members.items()}

    def began_in(self) -> dict[str, int]:
        """Return, by device id, the number of the device's cluster at the start of the open global round. The numbers
        come from the GPS's newest list of devices.
        """
        return {device_id: member.began_in for device_id, member in self._members.items()}

    def index_of(self, device_id: str) -> int:
        """Return the index of a device."""
        return self._members[device_id].device_index

    @property
    def indexes(self) -> dict[str, int]:
        """The indexes of all devices by their ids."""
        return {device_id: member.device_index for device_id, member in self._members.items()}

    def shares(self, streams: Streams, children: Mapping[str, int]) -> Shares:
        """Return, for each device in `children`, the streams to which the device's update is added, and with which
        weights. `children` has the devices' numbers of examples. If consecutive rounds ask the same devices, the result
        is calculated once.
        """
        if self._known is None or self._known[:2] != (streams, children):
            self._known = streams, children, self._shares(streams, children)
        return self._known[2]

    def _shares(self, streams: Streams, children: Mapping[str, int]) -> Shares:
        routes, vector = {}, streams.vector(self.clusters)
        for device_id, examples in children.items():
            member = self._members[device_id]
            shares: dict[str, dict[int, int]] = {channel: {} for channel in self.mixed}
            for share in member.shares:
                shares[share.channel][share.stream] = share.weight
            routes[device_id] = vector.routes(member.cluster, examples, shares)
        return routed_shares(vector.sizes, routes, children)
