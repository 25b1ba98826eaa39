"""When transfers start, end and arrive on links: pure, from whole nanoseconds and bits to whole nanoseconds and bits.

Nothing here waits or looks at a clock, and nothing depends on the order in which transfers are given. An end is rounded
up to the next whole nanosecond, and nothing else is rounded.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from fedstrata.experiment.quantities import FASTEST
from fedstrata.experiment.rates import SECOND_NS, AnyRate, end_of, rate_at

# A shared link keeps 256 binary places of a nanosecond, and as many of what a flow has been given. All that is cut off
# behind them, in as many events as there may be, stays below `NOTHING`, 2 ** -128 ns. So an end that is later than a
# whole nanosecond by no more than that is at it.
FRACTION = 256
NOTHING, NEVER = 1 << 128, 1 << 1024
BIT = SECOND_NS << FRACTION  # what a flow has been given is its rate times nanoseconds
JITTER = 0x6A697474  # "jitt": tells these draws from all others
# of whose round, or of what before training or asked in a round, a draw is, in its address
DEVICE_LINK, LPS_LINK, BEFORE, DEVICE_ASKED, LPS_ASKED = 0, 1, 2, 3, 4
DOWN, UP = 0, 1
WHOLE_LINK = -1  # in place of a flow's number


def drawn_latency(latency_ns: int, jitter_ns: int, address: Sequence[int]) -> int:
    """A transfer's latency: evenly from as much below as above, by the address of seed, link, round and direction."""
    if not jitter_ns:
        return latency_ns
    draw = np.random.default_rng([address[0], JITTER, *address[1:]]).integers(-jitter_ns, jitter_ns, endpoint=True)
    return latency_ns + int(draw)


@dataclass
class Line:
    """One direction of a link, which carries one transfer after the other."""

    rate: AnyRate
    free_ns: int = 0

    def carry(self, now_ns: int, bits: int) -> int:
        """When the last bit of a transfer has left that is wanted now."""
        self.free_ns = end_of(max(now_ns, self.free_ns), bits, self.rate)
        return self.free_ns


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A transfer through a shared link: when it may start, its bits, and what its own link allows."""

    start_ns: int
    bits: int
    rate: AnyRate


@dataclass
class _Group:
    """Flows under way whose own links are equally fast. All have one rate and pass marks in the order of `target`."""

    most: int  # bits a second that their own links allow
    is_held: bool  # whether each has that rate, or the even share of what such groups leave
    base: int  # what the group's counter was, or would have been, before any of it was the group's
    flows: list[tuple[int, int]] = field(default_factory=list)  # targets, ascending, and the numbers of their flows


@dataclass
class _UnderWay:
    """A flow in a shared link."""

    group: _Group
    since: int  # what the group had been given as the flow began, or would have been
    marks: Sequence[int]  # in bits, ascending, the last its end
    passed: int = 0  # how many of them

    @property
    def target(self) -> int:
        """What the group will have been given when the next mark is passed."""
        return self.since + self.marks[self.passed] * BIT


class FairLink:
    """A link that all flows under way share max-min fairly; who begins and who gives up is told as it happens.

    A flow ends at a fraction of a nanosecond, and the shares of the others change then. Each group of flows with the
    same own rate has that rate, or the even share of what is left. The groups with the even share have one counter for
    all, `_level`, and the groups with their own rate have the time. So an event costs a few searches in ordered lists,
    and does not go through all groups.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._now = 0
        self._level = 0  # what a flow that always had the even share would have been given
        self._rest = capacity  # bits a second that the groups with their own rates leave
        self._sharing = 0  # how many flows share that evenly
        self._flows: dict[int, _UnderWay] = {}
        self._groups: dict[int, _Group] = {}
        self._rates: list[int] = []  # of the groups, ascending
        self._held = 0  # how many groups have their own rates: the slowest
        # when the next mark of each group is passed: the time where it has its own rate, or else the level
        self._queues: dict[bool, list[tuple[int, int]]] = {True: [], False: []}

    def begin(self, number: int, marks: Sequence[int], rate: int | None) -> None:
        """Let a flow begin now whose own link has this rate; `marks` are bits at which its passing is noted."""
        group = self._group(rate)
        self._enter(number, _UnderWay(group, self._served(group), marks))

    def change(self, number: int, rate: int | None) -> None:
        """Let the own link of a flow, if it is under way, have another rate from now on."""
        flow = self._flows.get(number)
        if flow is not None:
            served = self._served(flow.group) - flow.since
            self._leave(number, flow)
            flow.group = self._group(rate)
            flow.since = self._served(flow.group) - served
            self._enter(number, flow)

    def resize(self, capacity: int) -> None:
        """Let the link have another rate from now on."""
        self._rest += capacity - self._capacity
        self._capacity = capacity

    def drop(self, number: int) -> None:
        """Let a flow go before its end, if it is under way; the others share what it leaves."""
        flow = self._flows.get(number)
        if flow is not None:
            self._leave(number, flow)

    def has(self, number: int) -> bool:
        """Whether a flow is under way."""
        return number in self._flows

    def carried(self, number: int) -> int:
        """How many whole bits of a flow under way have gone over the link."""
        flow = self._flows[number]
        return (self._served(flow.group) - flow.since + NOTHING) // BIT

    def next_ns(self) -> int | None:
        """When the next mark is passed if nothing changes before; None where no flow is under way, or none moves."""
        at = self._next()
        return None if at is None else _whole_ns(at)

    def advance(self, until_ns: int) -> list[tuple[int, int]]:
        """Let time go by, not backwards; gives the flows that have passed a mark, in order, and when."""
        passed: list[tuple[int, int]] = []
        while (at := self._next()) is not None and _whole_ns(at) <= until_ns:
            self._serve(at)
            for is_held, until in ((True, self._now), (False, self._level)):
                while self._queues[is_held] and self._queues[is_held][0][0] <= until:
                    self._pass_marks(self._groups[self._queues[is_held][0][1]], passed)
        self._serve(max(self._now, until_ns << FRACTION))
        return passed

    def _next(self) -> int | None:
        """When the next mark is passed, to the fraction of a nanosecond."""
        self._settle()
        held, sharing = self._queues[True], self._queues[False]
        times = [held[0][0]] if held and held[0][0] < NEVER else []
        if sharing and self._rest:
            times.append(self._now - (self._level - sharing[0][0]) * self._sharing // self._rest)
        return min(times, default=None)

    def _settle(self) -> None:
        """Give a group its own rate if that is no more than the even share."""
        while self._held and self._rates[self._held - 1] * self._sharing > self._rest:
            self._hold(self._groups[self._rates[self._held - 1]], is_held=False)
        while self._held < len(self._rates) and self._rates[self._held] * self._sharing <= self._rest:
            self._hold(self._groups[self._rates[self._held]], is_held=True)

    def _hold(self, group: _Group, *, is_held: bool) -> None:
        self._unqueue(group)
        self._count(group, -len(group.flows))
        served, group.is_held = self._served(group), is_held
        group.base = 0
        group.base = self._served(group) - served
        self._held += 1 if is_held else -1
        self._count(group, len(group.flows))
        self._queue(group)

    def _serve(self, until: int) -> None:
        if self._sharing:
            self._level += (until - self._now) * self._rest // self._sharing
        self._now = until

    def _pass_marks(self, group: _Group, passed: list[tuple[int, int]]) -> None:
        self._unqueue(group)
        served, at_ns = self._served(group), _whole_ns(self._now)
        while group.flows and group.flows[0][0] <= served:
            _, number = group.flows.pop(0)
            passed.append((number, at_ns))
            flow = self._flows[number]
            flow.passed += 1
            if flow.passed < len(flow.marks):
                insort(group.flows, (flow.target, number))
            else:
                del self._flows[number]
                self._count(group, -1)
        self._queue(group)

    def _served(self, group: _Group) -> int:
        """How much each flow of a group has been given since the group began."""
        return (group.most * self._now if group.is_held else self._level) - group.base

    def _group(self, rate: int | None) -> _Group:
        """The group of flows with a rate, which is begun if there is none."""
        most = FASTEST if rate is None else rate
        if most not in self._groups:
            place = bisect_left(self._rates, most)
            self._groups[most] = _Group(most, is_held=place < self._held, base=0)
            self._rates.insert(place, most)
            self._held += place < self._held
        return self._groups[most]

    def _enter(self, number: int, flow: _UnderWay) -> None:
        self._unqueue(flow.group)
        self._flows[number] = flow
        insort(flow.group.flows, (flow.target, number))
        self._count(flow.group, 1)
        self._queue(flow.group)

    def _leave(self, number: int, flow: _UnderWay) -> None:
        self._unqueue(flow.group)
        del self._flows[number]
        del flow.group.flows[bisect_left(flow.group.flows, (flow.target, number))]
        self._count(flow.group, -1)
        self._queue(flow.group)

    def _count(self, group: _Group, flows: int) -> None:
        """Note that a group has so many flows more."""
        if group.is_held:
            self._rest -= group.most * flows
        else:
            self._sharing += flows

    def _queue(self, group: _Group) -> None:
        """Note when the next mark of a group is passed; forget a group without flows."""
        if group.flows:
            insort(self._queues[group.is_held], (self._due(group), group.most))
        else:
            self._held -= group.is_held
            del self._groups[group.most]
            del self._rates[bisect_left(self._rates, group.most)]

    def _unqueue(self, group: _Group) -> None:
        if group.flows:
            queue = self._queues[group.is_held]
            del queue[bisect_left(queue, (self._due(group), group.most))]

    @staticmethod
    def _due(group: _Group) -> int:
        """When, or at which level, the next mark of a group is passed."""
        until = group.base + group.flows[0][0]
        if not group.is_held:
            return until
        return -(-until // group.most) if group.most else NEVER


def _whole_ns(at: int) -> int:
    """The whole nanosecond at or after a time."""
    return -((NOTHING - at) >> FRACTION)


def fair_ends(flows: Sequence[Flow], capacity: AnyRate) -> list[int]:
    """When each flow's last bit has left a link that all share max-min fairly; each alone where nothing limits it."""
    if capacity is None:
        return [end_of(flow.start_ns, flow.bits, flow.rate) for flow in flows]
    return _Sharing(flows, capacity).ends()


def carried_by(flows: Sequence[Flow], capacity: AnyRate, until_ns: int) -> list[tuple[int | None, int]]:
    """When each flow has left a link that all share, None where it has not by a time, and how many of its bits have."""
    return _Sharing(flows, capacity).carried_by(until_ns)


class _Sharing:
    """Flows through a shared link, from the first start to the last end."""

    def __init__(self, flows: Sequence[Flow], capacity: AnyRate) -> None:
        self._flows = flows
        self._capacity = capacity
        self._link = FairLink(0)
        self._changes = [(flow.start_ns, number) for number, flow in enumerate(flows) if flow.bits]
        self._to_begin = len(self._changes)
        if self._changes:
            self._changes.append((min(self._changes)[0], WHOLE_LINK))
        heapify(self._changes)
        self._begun: set[int] = set()

    def ends(self) -> list[int]:
        """When each flow has ended."""
        passed = self._go_through(None)
        while (next_ns := self._link.next_ns()) is not None:
            passed += self._link.advance(next_ns)
        ends = [flow.start_ns for flow in self._flows]
        for number, at_ns in passed:
            ends[number] = at_ns
        return ends

    def carried_by(self, until_ns: int) -> list[tuple[int | None, int]]:
        """When each flow has ended, None where it has not by a time, and its bits by then."""
        over = dict(self._go_through(until_ns) + self._link.advance(until_ns))
        found: list[tuple[int | None, int]] = []
        for number, flow in enumerate(self._flows):
            if number in over or (not flow.bits and flow.start_ns <= until_ns):
                found.append((over.get(number, flow.start_ns), flow.bits))
            else:
                found.append((None, self._link.carried(number) if self._link.has(number) else 0))
        return found

    def _go_through(self, until_ns: int | None) -> list[tuple[int, int]]:
        """Let happen what changes up to a time, or all that matters; gives the flows that have ended, and when."""
        passed: list[tuple[int, int]] = []
        while self._changes and (until_ns is None or self._changes[0][0] <= until_ns):
            at_ns, number = heappop(self._changes)
            passed += self._link.advance(at_ns)
            if not self._to_begin and len(passed) == len(self._begun):
                break
            self._change(at_ns, number)
        return passed

    def _change(self, at_ns: int, number: int) -> None:
        """Begin a flow, or let its own link, or the shared one, have another rate."""
        rate, next_ns = rate_at(self._capacity if number == WHOLE_LINK else self._flows[number].rate, at_ns)
        if number == WHOLE_LINK:
            self._link.resize(FASTEST if rate is None else rate)
        elif number not in self._begun:
            self._begun.add(number)
            self._to_begin -= 1
            self._link.begin(number, (self._flows[number].bits,), rate)
        elif self._link.has(number):
            self._link.change(number, rate)
        else:
            return
        if next_ns is not None:
            heappush(self._changes, (next_ns, number))
