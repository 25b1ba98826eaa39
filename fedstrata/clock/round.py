"""One round of a parent's children on the virtual clock: when each has its model, has answered and is back.

Whose round it is does not matter here: of devices at an LPS, or of LPSs at the GPS.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedstrata.clock.calendar import DEVICE_ASKED, DOWN, UP, Flow, drawn_latency, fair_ends
from fedstrata.clock.course import AnyLink, AnyShared
from fedstrata.errors import RunStoppedError
from fedstrata.v1 import rounds_pb2 as pb

PARTS = ("down", "compute", "up")
LAST_NS = 1 << 61  # 73 years: where a timeline, or the sum of a round's times, ends before int64 does


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """What went between a parent and one child in a round, in bytes, and what the child says that it has done."""

    down_bytes: int
    up_bytes: int
    work: pb.Work
    stream: int = 0  # which of the round's models the child was sent


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Who sent over a shared link in a round and is not of it at its end: what the others' times hang on, too."""

    updates: Mapping[str, Exchanged] = field(default_factory=dict)
    answers: Mapping[str, Exchanged] = field(default_factory=dict)  # of those whose answers came too late


@dataclass(frozen=True, kw_only=True)
class Child:
    """A child in a round: the address of its link's draws, and how long it is busy."""

    name: str
    link: AnyLink
    index: int
    busy_ns: int
    exchanged: Exchanged
    free_ns: int = 0  # from when on it listens
    first_ns: int = 0  # of `busy_ns`, for the answer to the round's question


def latency_of(link: AnyLink, start_ns: int, address: Sequence[int], index: int, direction: int) -> int:
    """The latency of a transfer that starts at a time."""
    now = link.at(start_ns)
    return drawn_latency(now.latency, now.jitter, [*address, index, direction])


def models_there(children: Sequence[Child], begins_ns: int, address: Sequence[int], shared: AnyShared) -> list[int]:
    """When each child has its model."""
    return [
        end + latency_of(child.link, max(begins_ns, child.free_ns), address, child.index, DOWN)
        if child.exchanged.down_bytes
        else end
        for child, end in zip(children, _sent(children, begins_ns, shared), strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class Way:
    """A child about to send its update: since when, and how long it was about what before that."""

    ready_ns: int
    down_ns: int
    up_ns: int = 0  # of its answer


def ways_of(children: Sequence[Child], begins_ns: int, had: Sequence[int]) -> list[Way]:
    """Of children that work once they have the model."""
    return [
        Way(ready_ns=at_ns + child.busy_ns, down_ns=at_ns - begins_ns)
        for child, at_ns in zip(children, had, strict=True)
    ]


def asked_address(address: Sequence[int]) -> list[int]:
    """Of the draws of what belongs to a question in a round."""
    return [address[0], DEVICE_ASKED, *address[2:]]


def answers_of(children: Sequence[Child], had: Sequence[int]) -> list[Flow]:
    """The answers of children that have the model since a time, as transfers."""
    return [
        Flow(start_ns=at_ns + child.first_ns, bits=8 * child.exchanged.work.answer_bytes, rate=child.link.course("up"))
        for child, at_ns in zip(children, had, strict=True)
    ]


def updates_of(children: Sequence[Child], ways: Sequence[Way]) -> list[Flow]:
    """The updates of children that are about to send them, as transfers."""
    return [
        Flow(start_ns=way.ready_ns, bits=8 * child.exchanged.up_bytes, rate=child.link.course("up"))
        for child, way in zip(children, ways, strict=True)
    ]


def answers_there(
    children: Sequence[Child],
    had: Sequence[int],
    address: Sequence[int],
    shared: AnyShared,
    *,
    beside: Sequence[Flow] = (),
) -> list[int]:
    """When the answer of each child is at its parent that has the model since a time; `beside` as in `round_times`."""
    return _up_there(children, answers_of(children, had), asked_address(address), shared, beside)


def _up_there(
    children: Sequence[Child],
    flows: Sequence[Flow],
    address: Sequence[int],
    shared: AnyShared,
    beside: Sequence[Flow],
) -> list[int]:
    """When what each child sends up is at its parent; `beside` is what others have on the link."""
    sent = fair_ends([*flows, *beside], shared.up_rate)[: len(flows)]
    return [
        end + latency_of(child.link, flow.start_ns, address, child.index, UP)
        for child, flow, end in zip(children, flows, sent, strict=True)
    ]


def ways_asked(
    children: Sequence[Child],
    begins_ns: int,
    had: Sequence[int],
    answered: Sequence[int],
    *,
    address: Sequence[int],
    goes_on_ns: int,
) -> list[Way]:
    """Of children that have answered, and go on a latency after their parent has heard of the plan."""
    ways, address = [], asked_address(address)
    for child, at_ns, answered_ns in zip(children, had, answered, strict=True):
        told_ns = goes_on_ns + latency_of(child.link, goes_on_ns, address, child.index, DOWN)
        ways.append(
            Way(
                ready_ns=told_ns + child.busy_ns - child.first_ns,
                down_ns=at_ns - begins_ns + told_ns - goes_on_ns,
                up_ns=answered_ns - at_ns - child.first_ns,
            )
        )
    return ways


def check_clock_at(now_ns: int) -> None:
    """Raise RunStoppedError where the clock, or the waits of a round together, pass what int64 holds of sums."""
    if now_ns >= LAST_NS:
        raise RunStoppedError(
            "the virtual clock passes 73 years, or a round's waits together do; raise the rates of links"
        )


def round_times(
    children: Sequence[Child],
    begins_ns: int,
    ways: Sequence[Way],
    address: Sequence[int],
    shared: AnyShared,
    *,
    ends_ns: int | None = None,
    beside: Sequence[Flow] = (),
) -> pb.RoundTimes:
    """A round of children about to send their updates; it ends as the last one arrives, or at a time.

    `beside` is what others have on the link up that is shared.
    """
    back = _up_there(children, updates_of(children, ways), address, shared, beside)
    ends_ns = max(back, default=begins_ns) if ends_ns is None else ends_ns
    # What children say of an answer need not show in when a round ends.
    said_ns = sum(child.busy_ns + way.up_ns for child, way in zip(children, ways, strict=True))
    check_clock_at(max(ends_ns, (ends_ns - begins_ns) * len(back), said_ns))
    flows = [
        flow_of(child, begins_ns, way.down_ns, way.up_ns + over - way.ready_ns)
        for child, way, over in zip(children, ways, back, strict=True)
    ]
    slowest = next((child.name for child, at in zip(children, back, strict=True) if at == max(back)), "")
    return times_of(begins_ns, ends_ns, flows, slowest)


def times_of(begins_ns: int, ends_ns: int, flows: Sequence[pb.Flow], slowest: str) -> pb.RoundTimes:
    """From a beginning to an end, by what children did meanwhile: the rest of it they waited."""
    parts = {f"{part}_ns": sum(getattr(flow, f"{part}_ns") for flow in flows) for part in PARTS}
    return pb.RoundTimes(
        begins_ns=begins_ns,
        ends_ns=ends_ns,
        ready_ns=ends_ns,
        **parts,
        waiting_ns=(ends_ns - begins_ns) * len(flows) - sum(parts.values()),
        children=len(flows),
        slowest=slowest,
        flows=flows,
    )


def flow_of(child: Child, begins_ns: int, down_ns: int, up_ns: int, *, unsent_bytes: int = 0) -> pb.Flow:
    """What a round was worked out from, of one child, and how long its parts took."""
    had = child.exchanged
    return pb.Flow(
        child=child.index,
        down_bytes=had.down_bytes,
        up_bytes=had.up_bytes,
        examples=had.work.examples,
        stream=had.stream,
        down_ns=down_ns,
        compute_ns=child.busy_ns,
        up_ns=up_ns,
        away_ns=max(0, child.free_ns - begins_ns),
        answer_bytes=had.work.answer_bytes,
        answer_examples=had.work.answer_examples,
        unsent_bytes=unsent_bytes,
    )


def _sent(children: Sequence[Child], begins_ns: int, shared: AnyShared) -> list[int]:
    """When the last bit of each child's model has left its parent; a broadcast is over for all at once.

    It begins with the first child that listens; who does later has of it what its own link gives.
    """
    flows = [
        Flow(start_ns=max(begins_ns, each.free_ns), bits=8 * each.exchanged.down_bytes, rate=each.link.course("down"))
        for each in children
    ]
    if not shared.broadcast:
        return fair_ends(flows, shared.down_rate)
    alone = fair_ends(flows, None)
    streams: dict[int, Flow] = {}
    for child, flow in zip(children, flows, strict=True):
        one = streams.setdefault(child.exchanged.stream, replace(flow, rate=None))
        first_ns, bits = min(one.start_ns, flow.start_ns), max(one.bits, flow.bits)
        streams[child.exchanged.stream] = replace(one, start_ns=first_ns, bits=bits)
    over = dict(zip(streams, fair_ends(list(streams.values()), shared.down_rate), strict=True))
    return [max(end, over[child.exchanged.stream]) for child, end in zip(children, alone, strict=True)]
