"""One direction of a link that a parent's children share max-min fairly.

`fair_ends` and `carried_by` calculate when given transfers end. `SharedLink` carries transfers in real time.

Times are whole nanoseconds, and sizes whole bits. Only the end of a transfer is rounded, up to the next whole
nanosecond. The order in which transfers are given does not change the result.

A broadcast crosses the shared link once for all children that ask for it. Then each child's own link carries it.
"""

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, KeysView, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from fedstrata.experiment.quantities import FASTEST
from fedstrata.experiment.rates import SECOND_NS, AnyRate, end_of, rate_at
from fedstrata.process.sleeping import Clock

# A shared link counts time and bits with 256 binary places behind the point. The rounding errors of all events together
# stay below `NOTHING`, 2 ** -128 ns. So an end at most `NOTHING` after a whole nanosecond counts as at that nanosecond.
FRACTION = 256
NOTHING, NEVER = 1 << 128, 1 << 1024
BIT = SECOND_NS << FRACTION  # one bit in the unit of the counters: bits per second times nanoseconds
WHOLE_LINK = -1  # stands for the whole link in place of a flow's number


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Describe a transfer over a shared link: its earliest start, its bits, and the rate of the child's own link."""

    start_ns: int
    bits: int
    rate: AnyRate


@dataclass
class _Group:
    """Hold one group of the flows under way: all flows to or from children with equally fast links of their own. All
    flows of a group get the same rate. They reach their marks (numbers of bits, see `FairLink.begin`) in the order of
    their targets (see `_UnderWay.target`).
    """

    most: int  # rate of the flows' own links, in bits per second
    is_held: bool  # whether the flows have this rate; otherwise they have the even share
    base: int  # amount to subtract from `most` × time, or from `FairLink._level`, to get the group's counter
    flows: list[tuple[int, int]] = field(default_factory=list)  # targets, ascending, with the numbers of the flows

    @property
    def due(self) -> int:
        """The moment at which the next flow of the group reaches a mark. For flows with the rate of their own links,
        this is a time. For flows with the even share, it is a value of `FairLink._level`, which rises with time.
        """
        until = self.base + self.flows[0][0]
        if not self.is_held:
            return until
        return -(-until // self.most) if self.most else NEVER


@dataclass
class _UnderWay:
    """Hold a flow that is under way on a shared link."""

    group: _Group
    since: int  # value of the group's counter at the start of the flow
    marks: Sequence[int]  # numbers of bits, ascending; the last mark is the end of the flow
    passed: int = 0  # number of marks that the flow has passed

    @property
    def target(self) -> int:
        """The value of the group's counter (see `FairLink._served`) at which this flow reaches its next mark."""
        return self.since + self.marks[self.passed] * BIT


class FairLink:
    """Share a link max-min fairly among all transfers (flows) under way. The caller starts flows, advances the time,
    and may remove flows before their end.

    Each child also has a link of its own, and flows of children with equally fast links form a group. A group is slow
    if its own links are slower than the even share. The flows of slow groups get the full rate of their own links. All
    other flows share evenly the rate that the slow groups leave. The shares change when a flow begins or ends, which
    may be at a fraction of a nanosecond.

    Each group has a counter, which rises by the bits that each of its flows receives. A flow records the counter at its
    start. The counter's rise since then is the amount that the flow has received. The counter of a slow
    group is calculated from the time and the rate of its links. The counters of all other groups are calculated from
    one value, `_level`. So an event takes a few searches in ordered lists, not a pass over all groups.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._now = 0
        self._level = 0  # amount that a flow with the even share would have been given since the beginning
        self._rest = capacity  # bits per second that the groups with their own rates leave
        self._sharing = 0  # number of flows that share `_rest` evenly
        self._flows: dict[int, _UnderWay] = {}
        self._groups: dict[int, _Group] = {}
        self._rates: list[int] = []  # rates of the groups' own links, ascending
        self._held = 0  # number of groups that have their own rates: the first of `_rates`
        # When each group passes its next mark. True: groups with their own rates, by time. False: others, by `_level`.
        self._queues: dict[bool, list[tuple[int, int]]] = {True: [], False: []}

    def begin(self, number: int, marks: Sequence[int], rate: int | None) -> None:
        """Start a flow. `rate` is the rate of its own link. `marks` are numbers of bits: the link reports when the flow
        has passed each mark. The last mark is the end of the flow.
        """
        group = self._group(rate)
        self._enter(number, _UnderWay(group, self._served(group), marks))

    def change(self, number: int, rate: int | None) -> None:
        """Change the rate of a flow's own link, if the flow is under way."""
        flow = self._flows.get(number)
        if flow is not None:
            served = self._served(flow.group) - flow.since
            self.drop(number)
            flow.group = self._group(rate)
            flow.since = self._served(flow.group) - served
            self._enter(number, flow)

    def resize(self, capacity: int) -> None:
        """Change the rate of the shared link."""
        self._rest += capacity - self._capacity
        self._capacity = capacity

    def drop(self, number: int) -> None:
        """Remove a flow before its end, if it is under way. The other flows then share its rate."""
        flow = self._flows.pop(number, None)
        if flow is not None:
            self._unqueue(flow.group)
            del flow.group.flows[bisect_left(flow.group.flows, (flow.target, number))]
            self._count(flow.group, -1)
            self._queue(flow.group)

    @property
    def under_way(self) -> KeysView[int]:
        """The numbers of the flows under way."""
        return self._flows.keys()

    def carried(self, number: int) -> int:
        """Return how many whole bits of a flow under way have crossed the link."""
        flow = self._flows[number]
        return (self._served(flow.group) - flow.since + NOTHING) // BIT

    def next_ns(self) -> int | None:
        """Return when the next flow passes a mark, if no flow begins or changes before then. If no flow moves, return
        None.
        """
        at = self._next()
        return None if at is None else _whole_ns(at)

    def advance(self, until_ns: int) -> list[tuple[int, int]]:
        """Advance the time to `until_ns`. For each mark that was passed, return the flow's number and the time, in the
        order of time.
        """
        passed: list[tuple[int, int]] = []
        while (at := self._next()) is not None and _whole_ns(at) <= until_ns:
            self._serve(at)
            for is_held, until in ((True, self._now), (False, self._level)):
                while self._queues[is_held] and self._queues[is_held][0][0] <= until:
                    self._pass_marks(self._groups[self._queues[is_held][0][1]], passed)
        self._serve(max(self._now, until_ns << FRACTION))
        return passed

    def _next(self) -> int | None:
        """Return when the next flow passes a mark, including the fraction of a nanosecond."""
        self._settle()
        held, sharing = self._queues[True], self._queues[False]
        times = [held[0][0]] if held and held[0][0] < NEVER else []
        if sharing and self._rest:
            times.append(self._now - (self._level - sharing[0][0]) * self._sharing // self._rest)
        return min(times, default=None)

    def _settle(self) -> None:
        """Give each group the rate of its own links or, if the even share is less, the even share."""
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
        """Return a group's counter. While the counter rises by `BIT`, each flow of the group receives one bit."""
        return (group.most * self._now if group.is_held else self._level) - group.base

    def _group(self, rate: int | None) -> _Group:
        """Return the group of the flows with this rate of their own link. If there is no such group, create it."""
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

    def _count(self, group: _Group, flows: int) -> None:
        """Adjust the even share after a group has gained `flows` flows, or lost flows if the number is negative."""
        if group.is_held:
            self._rest -= group.most * flows
        else:
            self._sharing += flows

    def _queue(self, group: _Group) -> None:
        """Put a group into its queue, which is sorted by the next mark of each group. If the group has no flows, delete
        it instead.
        """
        if group.flows:
            insort(self._queues[group.is_held], (group.due, group.most))
        else:
            self._held -= group.is_held
            del self._groups[group.most]
            del self._rates[bisect_left(self._rates, group.most)]

    def _unqueue(self, group: _Group) -> None:
        if group.flows:
            queue = self._queues[group.is_held]
            del queue[bisect_left(queue, (group.due, group.most))]


def _whole_ns(at: int) -> int:
    """Return the time, rounded up to a whole nanosecond."""
    return -((NOTHING - at) >> FRACTION)


class ScheduledLink:
    """Share a link fairly while the rate of the link and the rates of the flows' own links change over time."""

    def __init__(self, capacity: AnyRate) -> None:
        self._capacity = capacity
        self._link = FairLink(0)
        self._rates: dict[int, AnyRate] = {}  # rates of the flows' own links
        self._changes: list[tuple[int, int]] = []  # a heap of the times at which rates of flows or of the link change

    def begin(self, at_ns: int, number: int, marks: Sequence[int], rate: AnyRate) -> list[tuple[int, int]]:
        """Start a flow at the time `at_ns`. Return which flows have passed a mark until then, and when."""
        passed = self.advance(at_ns)
        if not self._link.under_way:
            self._changes.clear()
            self._change(at_ns, WHOLE_LINK)
        self._rates[number] = rate
        now, next_ns = rate_at(rate, at_ns)
        self._link.begin(number, marks, now)
        self._await_change(next_ns, number)
        return passed

    def drop(self, number: int) -> None:
        """Remove a flow, whether it is over or not."""
        self._rates.pop(number, None)
        self._link.drop(number)

    def carried(self, number: int) -> int | None:
        """Return how many whole bits of a flow have crossed the link; None if the flow has ended."""
        return self._link.carried(number) if number in self._link.under_way else None

    def next_ns(self) -> int | None:
        """Return the time of the next event: a flow passes a mark, or a rate changes. Return None if no flow is under
        way, or if no such event follows.
        """
        if not self._link.under_way:
            return None
        times = [self._link.next_ns(), self._changes[0][0] if self._changes else None]
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    def advance(self, until_ns: int) -> list[tuple[int, int]]:
        """Advance the time to `until_ns`. For each mark that was passed, return the flow's number and the time, in the
        order of time.
        """
        passed: list[tuple[int, int]] = []
        while self._changes and self._changes[0][0] <= until_ns and self._link.under_way:
            at_ns, number = heappop(self._changes)
            passed += self._link.advance(at_ns)
            self._change(at_ns, number)
        return passed + self._link.advance(until_ns)

    def _change(self, at_ns: int, number: int) -> None:
        """Apply a new rate, from a given time on, to the link or to a flow under way."""
        if number == WHOLE_LINK:
            rate, next_ns = rate_at(self._capacity, at_ns)
            self._link.resize(FASTEST if rate is None else rate)
        elif number in self._link.under_way:
            rate, next_ns = rate_at(self._rates[number], at_ns)
            self._link.change(number, rate)
        else:
            return
        self._await_change(next_ns, number)

    def _await_change(self, at_ns: int | None, number: int) -> None:
        if at_ns is not None:
            heappush(self._changes, (at_ns, number))


def fair_ends(flows: Sequence[Flow], capacity: AnyRate) -> list[int]:
    """Return when the last bit of each flow has left a max-min fair shared link. If `capacity` is None, flows do not
    slow each other down.
    """
    if capacity is None:
        return [end_of(flow.start_ns, flow.bits, flow.rate) for flow in flows]
    link = ScheduledLink(capacity)
    passed = _begin(link, flows)
    while (next_ns := link.next_ns()) is not None:
        passed += link.advance(next_ns)
    ends = [flow.start_ns for flow in flows]
    for number, at_ns in passed:
        ends[number] = at_ns
    return ends


def carried_by(flows: Sequence[Flow], capacity: AnyRate, until_ns: int) -> list[tuple[int | None, int]]:
    """Return a pair for each flow on a shared link: the time at which the flow ended, and how many bits were carried by
    `until_ns`. If the flow had not ended by then, the time is None.
    """
    link = ScheduledLink(capacity)
    over = dict(_begin(link, flows, until_ns) + link.advance(until_ns))
    found: list[tuple[int | None, int]] = []
    for number, flow in enumerate(flows):
        if number in over or (not flow.bits and flow.start_ns <= until_ns):
            found.append((over.get(number, flow.start_ns), flow.bits))
        else:
            found.append((None, link.carried(number) or 0))
    return found


def _begin(link: ScheduledLink, flows: Sequence[Flow], until_ns: int | None = None) -> list[tuple[int, int]]:
    """Start the flows that have bits and that start by `until_ns`, and advance the time to the start of the last flow.
    Return the flows that have ended by then, each with the time of its end.
    """
    passed: list[tuple[int, int]] = []
    for start_ns, number in sorted((flow.start_ns, number) for number, flow in enumerate(flows) if flow.bits):
        if until_ns is None or start_ns <= until_ns:
            passed += link.begin(start_ns, number, (flows[number].bits,), flows[number].rate)
    return passed


@dataclass
class SharedFlow:
    """Hold a transfer on its way over a shared link, with the times at which it passed its marks (see
    `FairLink.begin`).
    """

    marks: Sequence[int]  # numbers of bits, ascending; the last mark is the size of the transfer
    passed: list[int] = field(default_factory=list)  # times at which the transfer passed its first marks
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def come(self, at_ns: int) -> int:
        """Return how many bits of the flow had crossed the link at a given time."""
        number = bisect_right(self.passed, at_ns)
        return self.marks[number - 1] if number else 0

    async def passed_ns(self, bits: int, check: Callable[[], None]) -> int:
        """Wait until this many bits of the flow have crossed the link. Return the time at which the last of these bits
        crossed it. To end the wait, `check` may raise an error.
        """
        number = bisect_left(self.marks, bits)
        while len(self.passed) <= number:
            self.news.clear()
            check()
            await self.news.wait()
        return self.passed[number]


class SharedLink:
    """Share a link in real time. The link advances its flows with a timer, and wakes the callers that wait for a flow.

    A rate may change over time. The times of its changes are counted from `origin_ns`, when the link was created.
    """

    def __init__(self, capacity: AnyRate, clock: Clock) -> None:
        self._clock = clock
        self.origin_ns = clock.now_ns()
        self._link = ScheduledLink(capacity)
        self._under_way: dict[int, SharedFlow] = {}
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, flow: SharedFlow, rate: AnyRate) -> tuple[int, int]:
        """Start a flow. Return the flow's number, for `drop`, and the time of the flow's start. `rate` is the rate of
        the child's own link.
        """
        start_ns, number = self._now_ns(), next(self._numbers)
        self._under_way[number] = flow
        self._note(self._link.begin(start_ns, number, flow.marks, rate))
        self._set_timer()
        return number, self.origin_ns + start_ns

    def drop(self, number: int) -> None:
        """Remove a flow, whether it is over or not."""
        self._note(self._link.advance(self._now_ns()))
        self._under_way.pop(number, None)
        self._link.drop(number)
        self._set_timer()

    def _now_ns(self) -> int:
        return self._clock.now_ns() - self.origin_ns

    def _note(self, passed: Sequence[tuple[int, int]]) -> None:
        """Record in each flow when it passed its marks."""
        for number, at_ns in passed:
            flow = self._under_way[number]
            flow.passed.append(self.origin_ns + at_ns)
            flow.news.set()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        next_ns = self._link.next_ns()
        self._timer = None if next_ns is None else self._clock.call_at(self.origin_ns + next_ns, self._ring)

    def _ring(self) -> None:
        self._note(self._link.advance(self._now_ns()))
        self._set_timer()


@dataclass
class Broadcast:
    """Hold a payload that is on its way to all children that have asked for it."""

    flow: SharedFlow
    number: int  # number of the flow in the shared link
    heard_by: set[int]  # children that have begun to receive the payload
    listeners: int = 0

    @property
    def is_over(self) -> bool:
        """Return whether the whole payload has crossed the shared link."""
        return len(self.flow.passed) == len(self.flow.marks)


class Broadcasts:
    """Hold the models of a parent's open round on a shared link. Each model crosses the link once, for all children."""

    def __init__(self, link: SharedLink) -> None:
        self._link = link
        self._open: dict[int, Broadcast] = {}  # broadcasts by the number of the model

    def forget(self) -> None:
        """Forget the models of the last round. Broadcasts under way still reach their receivers."""
        self._open.clear()

    def has_begun(self, model: int, child: int) -> bool:
        """Return whether a child has begun to receive the broadcast of a model. Such a child does not join the
        broadcast again: if it has lost a part, the part is sent to this child alone.
        """
        broadcast = self._open.get(model)
        return broadcast is not None and child in broadcast.heard_by

    def join(self, model: int, child: int, marks: Sequence[int]) -> Broadcast:
        """Let a child receive a model. The first child to ask starts the broadcast."""
        broadcast = self._open.get(model)
        if broadcast is None:
            flow = SharedFlow(marks)
            number, _ = self._link.begin(flow, None)
            broadcast = self._open[model] = Broadcast(flow, number, set())
        broadcast.heard_by.add(child)
        broadcast.listeners += 1
        return broadcast

    def leave(self, model: int, broadcast: Broadcast) -> None:
        """Note that a child stops receiving a broadcast. If the broadcast has no receiver left, end the broadcast."""
        broadcast.listeners -= 1
        if broadcast.listeners:
            return
        is_over = broadcast.is_over
        self._link.drop(broadcast.number)
        if not is_over and self._open.get(model) is broadcast:
            del self._open[model]
