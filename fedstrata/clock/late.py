"""Who misses the deadlines of an LPS round whose devices share a link up: worked out of all that they send, at once.

What is on its way over the link as a deadline passes is broken off there and then. Its share of the link was its own
until then, and its device is free; one that is still receiving or computing then is so until it is done.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedstrata.clock.calendar import UP, Flow, carried_by
from fedstrata.clock.round import Child, Exchanged, answers_of, asked_address, flow_of, latency_of, updates_of
from fedstrata.clock.timeline import DeviceTimeline, check_ever
from fedstrata.experiment import Experiment
from fedstrata.v1 import rounds_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Missed:
    """Of a device that has missed a deadline: until when it is busy, and what it has done in vain."""

    busy_ns: int
    flow: pb.Flow


@dataclass(frozen=True, kw_only=True)
class SharedRound:
    """An LPS round whose devices share a link up: from when on each is free, and when it has the model."""

    devices: DeviceTimeline
    lps_round: int
    begins_ns: int
    free: Mapping[str, int]
    there: Mapping[str, int]
    indexes: Mapping[str, int]
    late_answers: dict[str, Exchanged] = field(default_factory=dict)  # of those who are out of the round for it

    def missed_answers(self, answered: Mapping[str, Exchanged], ends_ns: int) -> dict[str, Missed]:
        """Whose answers are not there by a time, of all who have sent one."""
        children = self._children(answered)
        flows = answers_of(children, self._had(children))
        missed = {}
        for place, sent_ns, unsent in self._late(children, flows, asked_address(self._address), ends_ns):
            child, ready_ns = children[place], flows[place].start_ns
            only = replace(child, busy_ns=child.first_ns)
            down_ns = self.there[child.name] - self.begins_ns
            flow = flow_of(only, self.begins_ns, down_ns, sent_ns, unsent_bytes=unsent)
            missed[child.name] = Missed(busy_ns=max(ends_ns, ready_ns), flow=flow)
        return missed

    def missed_updates(
        self, announced: Mapping[str, Exchanged], ends_ns: int, goes_on_ns: int | None
    ) -> dict[str, Missed]:
        """Whose updates are not there by a time, of all who have one; with a question `goes_on_ns` says when it was
        that the LPS heard of the plan."""
        children = self._children(announced)
        asked = self._children(self.late_answers)
        ways = self.devices.ways(
            children, self.begins_ns, self._had(children), self._address, goes_on_ns,
            beside=answers_of(asked, self._had(asked)),
        )  # fmt: skip
        missed = {}
        for place, sent_ns, unsent in self._late(children, updates_of(children, ways), self._address, ends_ns):
            child, way = children[place], ways[place]
            flow = flow_of(child, self.begins_ns, way.down_ns, way.up_ns + sent_ns, unsent_bytes=unsent)
            missed[child.name] = Missed(busy_ns=max(ends_ns, way.ready_ns), flow=flow)
        return missed

    def check_ever(self, name: str, exchanged: Exchanged, goes_on_ns: int | None) -> None:
        """Raise PayloadError for work that is not done within 73 years; whoever says so is refused."""
        children = self._children({name: exchanged})
        (way,) = self.devices.ways(children, self.begins_ns, self._had(children), self._address, goes_on_ns)
        check_ever(max(way.ready_ns, children[0].busy_ns + way.up_ns), exchanged.work)

    @property
    def _address(self) -> list[int]:
        return self.devices.address(self.lps_round)

    def _children(self, exchanged: Mapping[str, Exchanged]) -> list[Child]:
        return self.devices.children(self.lps_round, exchanged, self.indexes, self.free)

    def _had(self, children: Sequence[Child]) -> list[int]:
        return [self.there[child.name] for child in children]

    def _late(
        self, children: Sequence[Child], flows: Sequence[Flow], address: Sequence[int], ends_ns: int
    ) -> Iterator[tuple[int, int, int]]:
        """Of each that is late its place, how long it was sending by then, and how many bytes had not left the link."""
        carried = carried_by(flows, self.devices.shared.up_rate, ends_ns)
        for place, (child, flow, (end_ns, bits)) in enumerate(zip(children, flows, carried, strict=True)):
            latency_ns = latency_of(child.link, flow.start_ns, address, child.index, UP)
            if end_ns is None or end_ns + latency_ns > ends_ns:
                yield place, max(0, ends_ns - flow.start_ns), (flow.bits - bits + 7) // 8


def announces_updates(experiment: Experiment) -> bool:
    """Return whether devices announce updates before sending them: on a shared uplink each deadline depends on all."""
    shared = experiment.links.shared
    is_shared = shared is not None and shared.device_lps.up_rate is not None
    return experiment.is_timed and experiment.deadlines.lps.deadline_s is not None and is_shared
