"""Calculate when updates of asynchronous rounds arrive in virtual time.

With `OwnArrivals`, each device has a link of its own, so the arrival of an update depends on no other device. With
`SharedArrivals`, devices share a link, so the arrival of an update also depends on devices that later rounds ask.
However, later rounds ask their devices after the round has closed. So all arrivals up to the close are certain when the
round closes. The other arrivals are calculated again in the next round, from what the link had carried at the close.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, Self

from fedstrata.clock.timeline import LAST_NS, DeviceTimeline, Round, Sent
from fedstrata.experiment.rates import AnyRate, end_of
from fedstrata.links.shared_link import Flow, fair_ends, received_by
from fedstrata.links.tier_links import DOWN, UP, Link
from fedstrata.v1 import rounds_pb2 as pb

Begun = Mapping[str, pb.Contribution]  # by device
Stream = tuple[int, int]  # number of a model's round, and of the model


class Arrivals(Protocol):
    """Define how a round calculates when updates arrive."""

    def begin(self, begun: Begun, updated: Sent) -> None:
        """Let the devices in `begun` start to work, and set the fields `arrives_ns` and `flow` of their updates.
        `updated` has these devices' transfers. An arrival after the close of this round may change in the next round.
        """

    def close(self, closes_ns: int) -> None:
        """Note, in each update that arrives after `closes_ns`, how far the device's transfers are at this time."""


class OwnArrivals:
    """Calculate arrivals over links that no other device uses."""

    def __init__(self, timed: Round) -> None:
        """Set `timed`, which calculates the times of updates that begin in this round."""
        self._timed = timed

    def begin(self, begun: Begun, updated: Sent) -> None:
        for name, each in begun.items():
            part = self._timed.update_alone(name, updated[name])
            each.arrives_ns = part.ended_ns
            each.flow.CopyFrom(part.flow)

    def close(self, closes_ns: int) -> None:
        """Do nothing, because all arrivals are certain."""


@dataclass(frozen=True, kw_only=True)
class _Task:
    """Hold a device's training of one model, with what is certain at the beginning of a round."""

    link: Link
    asked_ns: int
    stream: Stream
    down_bits: int
    down_latency_ns: int
    compute_ns: int
    up_bits: int
    received_ns: int | None  # when the device has the model; None while this is not certain
    at_ns: int  # close of the last round, when `carried` was noted; 0 if this round asks the device
    carried: int  # how much of its transfer a shared link had carried by then

    @classmethod
    def of(cls, each: pb.Contribution, devices: DeviceTimeline) -> Self:
        flow, far = each.flow, each.progress
        latency_ns = devices.links.latency_ns(each.from_round, each.child, DOWN, each.asked_ns)
        return cls(
            link=devices.links.link_of(each.child),
            asked_ns=each.asked_ns,
            stream=(each.from_round, flow.stream),
            down_bits=8 * flow.down_bytes,
            down_latency_ns=latency_ns if flow.down_bytes else 0,
            compute_ns=devices.compute_ns(each.child, each.from_round, flow.examples),
            up_bits=8 * flow.up_bytes,
            received_ns=far.received_ns if far.HasField("received_ns") else None,
            at_ns=far.at_ns,
            carried=int.from_bytes(far.carried, "little"),
        )

    def resumed(self, flow: Flow, capacity: AnyRate) -> Flow:
        """Return the rest of a transfer of this device: it starts at the close of the last round, with the amount that
        the shared link had carried by then. If the link is not shared (`capacity` is None), or if the transfer starts
        after this close, return `flow` unchanged.
        """
        if capacity is None or flow.start_ns > self.at_ns:
            return flow
        return replace(flow, start_ns=self.at_ns, received=self.carried)


class _Way:
    """Hold the transfers of a round in one direction, up or down, and calculate when they end."""

    def __init__(self, flows: Mapping[Hashable, Flow], capacity: AnyRate) -> None:
        self._flows, self._capacity = flows, capacity
        self.ends = dict(zip(flows, fair_ends(list(flows.values()), capacity), strict=True))

    def carried(self, closes_ns: int) -> dict[Hashable, int]:
        """Return how much the link has carried of each transfer that is under way when the round closes."""
        if self._capacity is None:
            return {}
        found = received_by(list(self._flows.values()), self._capacity, closes_ns)
        return {key: amount for key, amount in zip(self._flows, found, strict=True) if amount is not None}


class SharedArrivals:
    """Calculate arrivals over a link that all devices of an LPS share."""

    def __init__(self, devices: DeviceTimeline, under_way: Begun) -> None:
        """Set the links and boards, and the updates that are under way when the round begins."""
        self._devices, self._shared = devices, devices.links.shared
        self._updates: dict[str, pb.Contribution] = {}  # updates whose arrival is not certain
        self._tasks: dict[str, _Task] = {}
        self._add({name: each for name, each in under_way.items() if each.HasField("progress")})

    def _add(self, updates: Begun) -> None:
        self._updates.update(updates)
        self._tasks.update({name: _Task.of(each, self._devices) for name, each in updates.items()})

    def begin(self, begun: Begun, updated: Sent) -> None:
        for name, each in begun.items():
            sent = updated[name]
            each.flow.child, each.flow.stream, each.flow.examples = each.child, sent.stream, sent.work.examples
            each.flow.down_bytes, each.flow.up_bytes = sent.down_bytes, sent.up_bytes
        self._add(begun)
        self._down = _Way(self._downloads(), self._shared.down)
        self._received_ns = {name: self._receives_ns(name, task) for name, task in self._tasks.items()}
        ready_ns = {name: self._received_ns[name] + task.compute_ns for name, task in self._tasks.items()}
        self._up = _Way(self._uploads(ready_ns), self._shared.up)
        for name, task in self._tasks.items():
            each, links = self._updates[name], self._devices.links
            latency_ns = links.latency_ns(each.from_round, each.child, UP, ready_ns[name])
            each.arrives_ns = min(LAST_NS, self._up.ends[name] + latency_ns)
            each.flow.down_ns = min(LAST_NS, self._received_ns[name]) - each.asked_ns
            each.flow.compute_ns = task.compute_ns
            each.flow.up_ns = each.arrives_ns - min(each.arrives_ns, ready_ns[name])

    def _downloads(self) -> dict[Hashable, Flow]:
        """Return the transfers of models over the shared link. A broadcast is one transfer for all its devices."""
        flows: dict[Hashable, Flow] = {}
        for name, task in self._tasks.items():
            if task.received_ns is None:
                is_broadcast, key = self._shared.is_broadcast, self._key(name, task)
                bits = max(task.down_bits, flows[key].bits) if key in flows else task.down_bits
                flow = Flow(start_ns=task.asked_ns, bits=bits, rate=None if is_broadcast else task.link.rate(DOWN))
                flows[key] = task.resumed(flow, self._shared.down)
        return flows

    def _key(self, name: str, task: _Task) -> Hashable:
        """Return the key of a device's transfer among the downloads."""
        return task.stream if self._shared.is_broadcast else name

    def _receives_ns(self, name: str, task: _Task) -> int:
        """Return when a device has its model."""
        if task.received_ns is not None:
            return task.received_ns
        at_ns = self._down.ends[self._key(name, task)]
        if self._shared.is_broadcast:
            at_ns = max(at_ns, end_of(task.asked_ns, task.down_bits, task.link.rate(DOWN)))
        return at_ns + task.down_latency_ns

    def _uploads(self, ready_ns: Mapping[str, int]) -> dict[Hashable, Flow]:
        flows: dict[Hashable, Flow] = {}
        for name, task in self._tasks.items():
            flow = Flow(start_ns=ready_ns[name], bits=task.up_bits, rate=task.link.rate(UP))
            flows[name] = task.resumed(flow, self._shared.up)
        return flows

    def close(self, closes_ns: int) -> None:
        down, up = self._down.carried(closes_ns), self._up.carried(closes_ns)
        for name, task in self._tasks.items():
            each, received_ns = self._updates[name], self._received_ns[name]
            each.ClearField("progress")
            if task.received_ns is None and self._key(name, task) in down:
                each.progress.at_ns, each.progress.carried = closes_ns, _packed(down[self._key(name, task)])
            elif self._shared.up is not None and (name in up or received_ns + task.compute_ns > closes_ns):
                each.progress.at_ns, each.progress.received_ns = closes_ns, received_ns
                each.progress.carried = _packed(up.get(name, 0))


def _packed(amount: int) -> bytes:
    return amount.to_bytes((amount.bit_length() + 7) // 8, "little")
