"""One direction of a link that a parent's children share max-min fairly.

`fair_ends`, `carried_by` and `received_by` calculate how given transfers go on. `SharedLink` carries transfers in real
time.

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
from fedstrata.process.waiting import RealTime

# A shared link counts time and bits with 256 binary places behind the point. The rounding errors of all events together
# stay below `NOTHING`, 2 ** -128 ns. So an end at most `NOTHING` after a whole nanosecond counts as at that nanosecond.
# In the same way, a flow that lacks at most `NOTHING` of a whole bit has received this bit.
FRACTION = 256
NOTHING, NEVER = 1 << 128, 1 << 1024
BIT = SECOND_NS << FRACTION  # one bit in the unit of the meters: bits per second times nanoseconds
WHOLE_LINK = -1  # stands for the whole link in place of a flow's number


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Describe a transfer over a shared link: its earliest start, its bits, and the rate of the child's own link.

    If the transfer already began before `start_ns`, `received` is the amount that the link carried before. The unit is
    a bit divided by `BIT`.
    """

    start_ns: int
    bits: int
    rate: AnyRate
    received: int = 0


@dataclass
class _Group:
    """Hold the flows under way of all children with equally fast links of their own. These flows get the same rate."""

    rate: int  # rate of the flows' own links, in bits per second
    is_slow: bool  # whether the flows get this rate; otherwise they get the even share
    offset: int = 0  # added to the group's meter, so that the meter does not jump when `is_slow` changes
    flows: list[tuple[int, int]] = field(default_factory=list)  # targets, ascending, with the numbers of the flows

    @property
    def due(self) -> int:
        """The moment at which the next flow of the group passes a mark. If the group is slow, this is a time in units
        of 2⁻²⁵⁶ ns. Otherwise it is a value of `FairLink._even_bits`, which rises with time.
        """
        least = self.flows[0][0] - self.offset
        if not self.is_slow:
            return least
        return -(-least // self.rate) if self.rate else NEVER


@dataclass
class _UnderWay:
    """Hold a flow that is under way on a shared link."""

    rate: int  # rate of the flow's own link
    marks: Sequence[int]  # numbers of bits, ascending; the last mark is the end of the flow
    zero: int = 0  # reading of the group's meter at which the flow had received nothing
    passed: int = 0  # number of marks that the flow has passed

    @property
    def target(self) -> int:
        """The reading of the group's meter at which this flow reaches its next mark."""
        return self.zero + self.marks[self.passed] * BIT


class _Groups:
    """Hold the groups of a shared link in ordered lists: the slow groups, which are those with the least rates, and the
    other groups. To change a group, take it out, change it, and put it back.
    """

    def __init__(self) -> None:
        self.by_rate: dict[int, _Group] = {}
        # Slow groups are under the key True, other groups under False. `rates` has the groups' rates, ascending.
        # `queues` has when each group passes its next mark (see `_Group.due`), ascending, with the group's rate.
        self.rates: dict[bool, list[int]] = {True: [], False: []}
        self.queues: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self.slow_rate = 0  # rate that the flows of slow groups get together
        self.sharing = 0  # number of flows of other groups, which get the even share

    def take_out(self, rate: int) -> _Group:
        """Take out the group of the flows with this rate of their own links. If there is no such group, create it."""
        slow = self.rates[True]
        group = self.by_rate.pop(rate, None) or _Group(rate, is_slow=bool(slow) and rate < slow[-1])
        if group.flows:
            rates, queue = self.rates[group.is_slow], self.queues[group.is_slow]
            del rates[bisect_left(rates, rate)]
            del queue[bisect_left(queue, (group.due, rate))]
            self._count(group, -len(group.flows))
        return group

    def put_back(self, group: _Group) -> None:
        """Put a group back, unless it has no flows."""
        if group.flows:
            self.by_rate[group.rate] = group
            insort(self.rates[group.is_slow], group.rate)
            insort(self.queues[group.is_slow], (group.due, group.rate))
            self._count(group, len(group.flows))

    def _count(self, group: _Group, flows: int) -> None:
        if group.is_slow:
            self.slow_rate += group.rate * flows
        else:
            self.sharing += flows


class FairLink:
    """Share a link max-min fairly among all transfers (flows) under way. The caller starts flows, advances the time,
    and may remove flows before their end.

    Each child also has a link of its own, and flows of children with equally fast links form a group. A group is slow
    if its own links are not faster than the even share. The flows of slow groups get the full rate of their own links.
    All other flows share evenly the rate that the slow groups leave. The shares change when a flow begins or ends,
    which may be at a fraction of a nanosecond.

    Each group has a meter, which rises by the bits that each of its flows receives. A flow has marks (see `begin`), and
    passes its next mark at its target: the reading at its start plus the mark. So the flow with the smallest target is
    the next of its group to pass a mark. A flow ends at its last mark.

    The meter of a slow group is calculated from the time. The meters of all other groups rise by the same amounts, so
    they are calculated from one number, `_even_bits`. An event then takes a few searches in ordered lists, not a pass
    over all groups.

    Example: a link carries 9 bits per second. Flow 0 has 18 bits, and its own link carries 4 bits per second. Flow 1
    has 30 bits, and flow 2 has 6 bits. Their own links have no limit, so they form one group. Flow 2 begins after one
    second, when the meter of this group shows 5. Its target is 5 + 6 = 11::

        time          rates of flows 0, 1, 2    meters of flow 0 and of the group of flows 1 and 2
        0 s           4  5  -                   0   0
        1 s           3  3  3                   4   5    flow 2 begins; the even share is 3, so no group is slow
        3 s           4  5  -                  10  11    flow 2 ends
        5 s           -  9  -                  18  21    flow 0 ends
        6 s           -  -  -                   -  30    flow 1 ends

    >>> link = FairLink(9)
    >>> link.begin(0, [18], 4)
    >>> link.begin(1, [30], None)
    >>> link.advance(1 * SECOND_NS)
    []
    >>> link.begin(2, [6], None)
    >>> link.advance(2 * SECOND_NS)
    []
    >>> [link.carried(number) for number in (0, 1, 2)]
    [7, 8, 3]
    >>> link.advance(9 * SECOND_NS)
    [(2, 3000000000), (0, 5000000000), (1, 6000000000)]
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._now = 0
        self._even_bits = 0  # amount that a flow with the even share would have received since the beginning
        self._flows: dict[int, _UnderWay] = {}
        self._groups = _Groups()

    def begin(self, number: int, marks: Sequence[int], rate: int | None, received: int = 0) -> None:
        """Start a flow. `rate` is the rate of its own link. `marks` are numbers of bits, ascending, and the last mark
        is the size of the flow. A flow passes a mark when this many of its bits have crossed the link, and `advance`
        reports each mark. `received` is as in `Flow`.
        """
        self._enter(number, _UnderWay(FASTEST if rate is None else rate, marks), received)

    def change(self, number: int, rate: int | None) -> None:
        """Change the rate of a flow's own link, if the flow is under way."""
        flow = self._flows.get(number)
        if flow is not None:
            received = self._received(flow)
            self.drop(number)
            flow.rate = FASTEST if rate is None else rate
            self._enter(number, flow, received)

    def resize(self, capacity: int) -> None:
        """Change the rate of the shared link."""
        self._capacity = capacity

    def drop(self, number: int) -> None:
        """Remove a flow before its end, if it is under way. The other flows then share its rate."""
        flow = self._flows.pop(number, None)
        if flow is not None:
            group = self._groups.take_out(flow.rate)
            del group.flows[bisect_left(group.flows, (flow.target, number))]
            self._groups.put_back(group)

    @property
    def under_way(self) -> KeysView[int]:
        """The numbers by which `begin` named the flows that have not ended."""
        return self._flows.keys()

    def carried(self, number: int) -> int:
        """Return how many whole bits of a flow under way have crossed the link."""
        return (self.received(number) + NOTHING) // BIT

    def received(self, number: int) -> int:
        """Return how much of a flow under way has crossed the link, in the unit of `Flow.received`."""
        return self._received(self._flows[number])

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
            self._carry(at)
            for is_slow, reached in ((True, self._now), (False, self._even_bits)):
                queue = self._groups.queues[is_slow]
                while queue and queue[0][0] <= reached:
                    passed += [(number, _whole_ns(at)) for number in self._pass_marks(queue[0][1])]
        self._carry(max(self._now, until_ns << FRACTION))
        return passed

    def _next(self) -> int | None:
        """Return the time at which the next flow passes a mark, in units of 2⁻²⁵⁶ ns. If no flow moves, return None."""
        self._share_out()
        slow, others = self._groups.queues[True], self._groups.queues[False]
        times = [slow[0][0]] if slow and slow[0][0] < NEVER else []
        if others and self._shared_rate:
            times.append(self._now - (self._even_bits - others[0][0]) * self._groups.sharing // self._shared_rate)
        return min(times, default=None)

    def _share_out(self) -> None:
        """Decide which groups are slow, after flows or rates have changed."""
        slow, others = self._groups.rates[True], self._groups.rates[False]
        while slow and slow[-1] * self._groups.sharing > self._shared_rate:
            self._switch(slow[-1])
        while others and others[0] * self._groups.sharing <= self._shared_rate:
            self._switch(others[0])

    def _switch(self, rate: int) -> None:
        """Change the kind of the group with this rate: a slow group begins to share evenly, and any other group becomes
        slow. The reading of its meter stays the same.
        """
        group = self._groups.take_out(rate)
        reading = self._reading(group)
        group.is_slow = not group.is_slow
        group.offset += reading - self._reading(group)
        self._groups.put_back(group)

    @property
    def _shared_rate(self) -> int:
        """The rate that slow groups leave to all other flows together."""
        return self._capacity - self._groups.slow_rate

    def _carry(self, until: int) -> None:
        """Advance the time to `until`, in units of 2⁻²⁵⁶ ns, and let the flows receive bits. No share changes before
        then.
        """
        if self._groups.sharing:
            self._even_bits += (until - self._now) * self._shared_rate // self._groups.sharing
        self._now = until

    def _reading(self, group: _Group) -> int:
        """Return what a group's meter shows. While it rises by `BIT`, each flow of the group receives one bit."""
        return (group.rate * self._now if group.is_slow else self._even_bits) + group.offset

    def _received(self, flow: _UnderWay) -> int:
        return self._reading(self._groups.by_rate[flow.rate]) - flow.zero

    def _enter(self, number: int, flow: _UnderWay, received: int) -> None:
        group = self._groups.take_out(flow.rate)
        flow.zero = self._reading(group) - received
        insort(group.flows, (flow.target, number))
        self._flows[number] = flow
        self._groups.put_back(group)

    def _pass_marks(self, rate: int) -> list[int]:
        """Let the flows of a group pass the marks that they have reached. Return the numbers of these flows."""
        group, numbers = self._groups.take_out(rate), []
        while group.flows and group.flows[0][0] <= self._reading(group):
            _, number = group.flows.pop(0)
            numbers.append(number)
            flow = self._flows[number]
            flow.passed += 1
            if flow.passed < len(flow.marks):
                insort(group.flows, (flow.target, number))
            else:
                del self._flows[number]
        self._groups.put_back(group)
        return numbers


def _whole_ns(at: int) -> int:
    """Return a time in whole nanoseconds, rounded up. `at` is the time in units of 2⁻²⁵⁶ ns."""
    return -((NOTHING - at) >> FRACTION)


class ScheduledLink:
    """Share a link fairly while the rate of the link and the rates of the flows' own links change over time."""

    def __init__(self, capacity: AnyRate) -> None:
        self._capacity = capacity
        self._link = FairLink(0)
        self._rates: dict[int, AnyRate] = {}  # rates of the flows' own links
        self._changes: list[tuple[int, int]] = []  # a heap of the times at which rates of flows or of the link change

    def begin(
        self, at_ns: int, number: int, marks: Sequence[int], rate: AnyRate, received: int = 0
    ) -> list[tuple[int, int]]:
        """Start a flow at `at_ns`. For each mark that earlier flows passed until then, return flow number and time."""
        passed = self.advance(at_ns)
        if not self._link.under_way:
            self._changes.clear()
            self._change(at_ns, WHOLE_LINK)
        self._rates[number] = rate
        now, next_ns = rate_at(rate, at_ns)
        self._link.begin(number, marks, now, received)
        self._await_change(next_ns, number)
        return passed

    def drop(self, number: int) -> None:
        """Remove a flow, whether it is over or not."""
        self._rates.pop(number, None)
        self._link.drop(number)

    def carried(self, number: int) -> int | None:
        """Return how many whole bits of a flow have crossed the link; None if the flow has ended."""
        return self._link.carried(number) if number in self._link.under_way else None

    def received(self, number: int) -> int | None:
        """Return how much of a flow has crossed the link, in the unit of `Flow.received`; None if it has ended."""
        return self._link.received(number) if number in self._link.under_way else None

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
    """Return, for each flow, the time at which its last bit has left a max-min fair shared link. If `capacity` is None,
    flows do not slow each other down.
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


def received_by(flows: Sequence[Flow], capacity: AnyRate, until_ns: int) -> list[int | None]:
    """Return, for each flow on a shared link, how much of it was carried by `until_ns`, in the unit of `Flow.received`.
    If the flow had ended by then, or not begun, the amount is None.
    """
    link = ScheduledLink(capacity)
    _begin(link, flows, until_ns)
    link.advance(until_ns)
    return [link.received(number) for number in range(len(flows))]


def _begin(link: ScheduledLink, flows: Sequence[Flow], until_ns: int | None = None) -> list[tuple[int, int]]:
    """Start the flows that have bits and that start by `until_ns`, and advance the time to the start of the last flow.
    Return the number and the end of each flow that has ended by then. A flow's number is its place in `flows`.
    """
    passed: list[tuple[int, int]] = []
    for start_ns, number in sorted((flow.start_ns, number) for number, flow in enumerate(flows) if flow.bits):
        if until_ns is None or start_ns <= until_ns:
            flow = flows[number]
            passed += link.begin(start_ns, number, (flow.bits,), flow.rate, flow.received)
    return passed


@dataclass
class SharedFlow:
    """Hold a transfer on its way over a shared link, with the times at which the transfer passed its marks (see
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

    def __init__(self, capacity: AnyRate, clock: RealTime) -> None:
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
