"""One direction of a link that a parent's children share, as time goes by: transfers of one child each, and broadcasts.

A broadcast goes over the link once, for all children that ask for it: what the link has carried of it lies at its far
end, where each child's own link goes on from there.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from fedstrata.clock.calendar import WHOLE_LINK, FairLink
from fedstrata.experiment.quantities import FASTEST
from fedstrata.experiment.rates import AnyRate, rate_at
from fedstrata.process.sleeping import Clock


@dataclass
class SharedFlow:
    """Something on its way over a shared link, and when it was at some of its bits."""

    marks: Sequence[int]  # bits at which its passing is noted, ascending, the last all of them
    passed: list[int] = field(default_factory=list)  # when it was at these marks
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def come(self, at_ns: int) -> int:
        """How many of its bits had gone over the link at a time."""
        number = bisect_right(self.passed, at_ns)
        return self.marks[number - 1] if number else 0

    async def passed_ns(self, bits: int, check: Callable[[], None]) -> int:
        """When so many bits have gone over the link, once they have; `check` may raise what ends the waiting."""
        number = bisect_left(self.marks, bits)
        while len(self.passed) <= number:
            self.news.clear()
            check()
            await self.news.wait()
        return self.passed[number]


class SharedLink:
    """One direction of a link that is shared: its flows go on by themselves, and whoever waits for one is told.

    Inside, times count as rates that change do: from `origin_ns` on.
    """

    def __init__(self, capacity: AnyRate, clock: Clock) -> None:
        self._capacity = capacity
        self._clock = clock
        self.origin_ns = clock.now_ns()
        self._fair = FairLink(0)
        self._under_way: dict[int, tuple[SharedFlow, AnyRate]] = {}
        self._changes: list[tuple[int, int]] = []  # a heap: when a flow's own link changes, or the whole
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, flow: SharedFlow, rate: AnyRate) -> tuple[int, int]:
        """Let a flow begin now whose own link has a rate; gives the number by which it is dropped, and the time."""
        start_ns, number = self._advance() if self._under_way else self._wake(), next(self._numbers)
        self._under_way[number] = flow, rate
        rate_now, changes_ns = rate_at(rate, start_ns)
        self._fair.begin(number, flow.marks, rate_now)
        self._await_change(changes_ns, number)
        self._set_timer()
        return number, self.origin_ns + start_ns

    def drop(self, number: int) -> None:
        """Let a flow go, over or not."""
        self._advance()
        self._under_way.pop(number, None)
        self._fair.drop(number)
        self._set_timer()

    def _wake(self) -> int:
        """Go on from now, which is given, where nothing went over the link: what changed meanwhile counts no more, nor
        what was to change for flows that are gone."""
        now_ns = self._clock.now_ns() - self.origin_ns
        self._changes.clear()
        self._go_on(now_ns)
        self._change(now_ns, WHOLE_LINK)
        return now_ns

    def _advance(self) -> int:
        """Let the flows go on until now, which is given."""
        now_ns = self._clock.now_ns() - self.origin_ns
        while self._changes and self._changes[0][0] <= now_ns:
            at_ns, number = heappop(self._changes)
            self._go_on(at_ns)
            self._change(at_ns, number)
        self._go_on(now_ns)
        return now_ns

    def _go_on(self, until_ns: int) -> None:
        for number, at_ns in self._fair.advance(until_ns):
            flow, _ = self._under_way[number]
            flow.passed.append(self.origin_ns + at_ns)
            flow.news.set()

    def _change(self, at_ns: int, number: int) -> None:
        """Let the link, or a flow's own, have another rate from a time on."""
        if number == WHOLE_LINK:
            rate, changes_ns = rate_at(self._capacity, at_ns)
            self._fair.resize(FASTEST if rate is None else rate)
        elif self._fair.has(number):
            rate, changes_ns = rate_at(self._under_way[number][1], at_ns)
            self._fair.change(number, rate)
        else:
            return
        self._await_change(changes_ns, number)

    def _await_change(self, at_ns: int | None, number: int) -> None:
        if at_ns is not None:
            heappush(self._changes, (at_ns, number))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._under_way:
            next_ns = [self._fair.next_ns(), self._changes[0][0] if self._changes else None]
            times = [at_ns for at_ns in next_ns if at_ns is not None]
            self._timer = self._clock.call_at(self.origin_ns + min(times), self._ring) if times else None

    def _ring(self) -> None:
        self._advance()
        self._set_timer()


@dataclass
class Broadcast:
    """A payload on its way to all children that ask for it."""

    flow: SharedFlow
    number: int  # of the flow in its link
    heard_by: set[int]  # the children that have begun to receive it
    listeners: int = 0

    @property
    def is_over(self) -> bool:
        """Whether all of it has gone over the link."""
        return len(self.flow.passed) == len(self.flow.marks)


class Broadcasts:
    """The models of a parent's open round on a shared link: each goes once, whoever receives it."""

    def __init__(self, link: SharedLink) -> None:
        self._link = link
        self._open: dict[int, Broadcast] = {}  # by the number of the model

    def forget(self) -> None:
        """Another round is open, with models of its own; what is under way goes on to those who receive it."""
        self._open.clear()

    def has_begun(self, model: int, child: int) -> bool:
        """Whether a child has begun to receive a model: what it has lost of it does not come again for all."""
        broadcast = self._open.get(model)
        return broadcast is not None and child in broadcast.heard_by

    def join(self, model: int, child: int, marks: Sequence[int]) -> Broadcast:
        """Let a child receive a model; the first one begins it."""
        broadcast = self._open.get(model)
        if broadcast is None:
            flow = SharedFlow(marks)
            number, _ = self._link.begin(flow, None)
            broadcast = self._open[model] = Broadcast(flow, number, set())
        broadcast.heard_by.add(child)
        broadcast.listeners += 1
        return broadcast

    def leave(self, model: int, broadcast: Broadcast) -> None:
        """A child receives it no more, all or not; one that nobody receives ends, and would have to begin again."""
        broadcast.listeners -= 1
        if broadcast.listeners:
            return
        is_over = broadcast.is_over
        self._link.drop(broadcast.number)
        if not is_over and self._open.get(model) is broadcast:
            del self._open[model]
