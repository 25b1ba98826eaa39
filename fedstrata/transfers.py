"""Transfers on the real clock: what goes between a parent and a child is there when its links would have carried it.

The parent holds both directions back, by one calendar for a child's own link and for one that all children share: what
it sends before it is written, what it receives before it is read on. Latency is no pause: pieces that follow each other
are under way at the same time.
"""

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from fedstrata.errors import SupersededError, UnknownChildError
from fedstrata.experiment import Experiment
from fedstrata.link import since_ns, until_ns
from fedstrata.link_calendar import DOWN, UP, FairLink, Line, drawn_latency
from fedstrata.link_rates import SECOND_NS, AnyRate, Course, bits_between, end_of
from fedstrata.quoting import quoted
from fedstrata.tier_links import WAYS, TierLinks
from fedstrata.v1 import rounds_pb2 as pb

STAGGERED = 8  # among how many places within a piece the flows of a shared link are spread
TIMER_STEP_NS = 1_000_000  # the event loop's timers count whole milliseconds
LEAD_STEP_NS, MOST_LEAD_NS = 50_000, 1_000_000


class Clock(Protocol):
    """What tells the time, in nanoseconds, and lets it pass."""

    def now_ns(self) -> int:
        """The time now."""

    async def until(self, at_ns: int, early_ns: int = 0) -> None:
        """Wait until a time, with timers that are set so much early."""

    def call_at(self, at_ns: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Have something called at a time, or by chance a little before."""


class RealTime:
    """The machine's own time."""

    def now_ns(self) -> int:
        """Nanoseconds since some time."""
        return time.monotonic_ns()

    async def until(self, at_ns: int, early_ns: int = 0) -> None:
        """Wait until a time, with timers that are set so much early."""
        await until_ns(at_ns, early_ns)

    def call_at(self, at_ns: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Have something called at a time."""
        return asyncio.get_running_loop().call_later(max(0, at_ns - time.monotonic_ns()) / 1e9, call)


class Lead:
    """How long sending a message takes here, in the median: what is to be there at a time is sent so much before.

    A step up for each that took longer, a step down for each that did not, so that one that waited long for a core
    counts no more than another.
    """

    def __init__(self) -> None:
        self.ns = 0

    def note(self, took_ns: int) -> None:
        """One took so long."""
        step_ns = LEAD_STEP_NS if took_ns > self.ns else -LEAD_STEP_NS
        self.ns = min(MOST_LEAD_NS, max(0, self.ns + step_ns))


@dataclass
class Transfer:
    """One transfer under way: its links' calendar, and what has come of it."""

    clock: Clock
    start_ns: int
    bits: int
    latency_ns: int
    rate: AnyRate
    origin_ns: int = 0  # where the time of a rate that changes begins
    marks: Sequence[int] = ()  # on a shared link: bits at which its passing is noted, the last all of them
    passed: list[int] = field(default_factory=list)  # when it was at these marks
    news: asyncio.Event = field(default_factory=asyncio.Event)
    achieved: pb.Carried | None = None
    lead: Lead | None = None  # of what is sent from here: how much before its time its last part is
    released_ns: int = 0  # when the last part was
    is_superseded: bool = False  # whether the child has begun another in the same direction since

    async def arrived(self, bits: int) -> None:
        """Wait until so many of its bits have arrived. Raises SupersededError when another takes its place."""
        there_ns = await self._left_ns(bits) + self.latency_ns
        if bits < self.bits:
            await self.clock.until(there_ns)
        else:  # its time is the whole transfer's
            await self.clock.until(there_ns - (self.lead.ns if self.lead is not None else 0), TIMER_STEP_NS)
            self.released_ns = self.clock.now_ns()
        self._check_current()

    def supersede(self) -> None:
        """Have whoever waits for it give it up."""
        self.is_superseded = True
        self.news.set()

    def _check_current(self) -> None:
        if self.is_superseded:
            raise SupersededError("another transfer has begun on this link in the same direction; go on with that one")

    async def all_arrived(self) -> None:
        """Wait until it is over."""
        await self.arrived(self.bits)

    def come(self) -> int:
        """How many of its bits have arrived by now."""
        left_ns = self.clock.now_ns() - self.latency_ns
        if self.marks:
            number = bisect_right(self.passed, left_ns)
            return self.marks[number - 1] if number else 0
        if self.rate is None or left_ns < self.start_ns:
            return self.bits if left_ns >= self.start_ns else 0
        if isinstance(self.rate, Course):
            left = bits_between(self.start_ns - self.origin_ns, left_ns - self.origin_ns, self.rate)
            return self.bits if left is None else min(self.bits, left)
        return min(self.bits, (left_ns - self.start_ns) * self.rate // SECOND_NS)

    async def _left_ns(self, bits: int) -> int:
        """When so many bits have left the links."""
        if not self.marks:
            return self.origin_ns + end_of(self.start_ns - self.origin_ns, bits, self.rate)
        number = bisect_left(self.marks, bits)
        while len(self.passed) <= number:
            self.news.clear()
            self._check_current()
            await self.news.wait()
        return self.passed[number]

    async def over(self) -> None:
        """Note what came of it: all of it is there now."""
        left_ns, now_ns = await self._left_ns(self.bits), self.clock.now_ns()
        if self.lead is not None:
            self.lead.note(now_ns - self.released_ns)
        self.achieved = pb.Carried(
            bytes=self.bits // 8,
            link_ns=left_ns - self.start_ns,
            achieved_link_ns=max(0, now_ns - self.start_ns - self.latency_ns),
            latency_ns=self.latency_ns,
            achieved_latency_ns=max(0, now_ns - left_ns),
        )


class _SharedLink:
    """One direction of a link that is shared: its flows go on by themselves, and whoever waits for one is told."""

    def __init__(self, capacity: int, clock: Clock) -> None:
        self._clock = clock
        self._fair = FairLink(capacity)
        self._under_way: dict[int, Transfer] = {}
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, transfer: Transfer) -> int:
        """Let a transfer begin; gives the number by which it is dropped."""
        transfer.start_ns = self._advance()
        number = next(self._numbers)
        self._under_way[number] = transfer
        if isinstance(transfer.rate, Course):
            raise TypeError("a shared link does not go with rates that change")  # refused with the experiment
        self._fair.begin(number, transfer.marks, transfer.rate)
        self._set_timer()
        return number

    def drop(self, number: int) -> None:
        """Let a transfer go, over or not."""
        self._advance()
        self._under_way.pop(number, None)
        self._fair.drop(number)
        self._set_timer()

    def _advance(self) -> int:
        """Let the flows go on until now, which is given."""
        now_ns = self._clock.now_ns()
        for number, at_ns in self._fair.advance(now_ns):
            transfer = self._under_way[number]
            transfer.passed.append(at_ns)
            transfer.news.set()
        return now_ns

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at_ns = self._fair.next_ns()
        self._timer = None if at_ns is None else self._clock.call_at(at_ns, self._ring)

    def _ring(self) -> None:
        self._advance()
        self._set_timer()


class Relay:
    """One direction of a child's own link, for messages that follow each other as they come."""

    def __init__(self, clock: Clock, rate: AnyRate, latency_ns: int, origin_ns: int = 0) -> None:
        self._clock = clock
        self._origin_ns = origin_ns
        self._line = Line(rate)
        self._latency_ns = latency_ns
        self.began_ns = clock.now_ns()

    async def carry(self, there_ns: int, size: int) -> None:
        """Wait until a message of so many bytes has arrived that was there to be sent at a time, or as this began."""
        left_ns = self._line.carry(max(there_ns, self.began_ns) - self._origin_ns, 8 * size)
        await self._clock.until(self._origin_ns + left_ns + self._latency_ns)


class Transfers:
    """What goes between a parent and its children, held back as their links are."""

    def __init__(self, links: TierLinks, clock: Clock | None = None) -> None:
        self.links = links
        self._clock = clock or RealTime()
        self._origin_ns = self._clock.now_ns()
        self._shared: dict[int, _SharedLink] = {}
        for way in (DOWN, UP):
            capacity = links.capacity(way)
            if capacity is not None:
                self._shared[way] = _SharedLink(capacity, self._clock)
        self._newest: dict[tuple[int, int], Transfer] = {}  # by child and direction
        self._lead = Lead()
        self._achieved: dict[tuple[int, int, int], pb.Carried] = {}  # by round, child and direction

    def began(self, ago_ns: int) -> None:
        """The time that rates change by began so long ago; until this is said, as these links were made."""
        self._origin_ns = self._clock.now_ns() - max(0, ago_ns)

    def _index(self, child_id: str) -> int:
        index = self.links.index_of(child_id)
        if index is None:
            raise UnknownChildError(f"{quoted(child_id)} is not of this run")
        return index

    def piece_bytes(self, child_id: str, way: int) -> int:
        """How large the pieces of a child's payloads are. Raises UnknownChildError."""
        return self.links.piece_bytes(self._index(child_id), way)

    @contextmanager
    def under_way(self, child_id: str, way: int, number: int, size: int, before: int = 0) -> Iterator[Transfer]:
        """A transfer of so many bytes in a round, `before` of them a header, for as long as the block lasts.

        A child's link carries one at a time in a direction: the one before is given up, and leaves what it shared.

        Raises:
            UnknownChildError: there is no such child.
        """
        index = self._index(child_id)
        superseded = self._newest.get((index, way))
        if superseded is not None:
            superseded.supersede()
        self._newest[index, way] = transfer = self._transfer(index, way, number, 8 * size, 8 * before)
        shared = self._shared.get(way)
        flow = None if shared is None or not transfer.bits else shared.begin(transfer)
        try:
            yield transfer
        finally:
            if shared is not None and flow is not None:
                shared.drop(flow)
            if self._newest.get((index, way)) is transfer:
                del self._newest[index, way]
        if transfer.achieved is not None:
            self._note(transfer.achieved, number, index, way)

    def _transfer(self, index: int, way: int, number: int, bits: int, before: int) -> Transfer:
        links, start_ns = self.links, self._clock.now_ns()
        course = links.link_of(index)
        link = course.at(start_ns - self._origin_ns)
        address = [links.seed, links.tier, number, index, way]
        marks: list[int] = []
        if way in self._shared and bits:
            step = 8 * links.piece_bytes(index, way)
            offset = step * (index % STAGGERED) // STAGGERED  # or the pieces of flows that begin together come together
            marks = [*range(before + step + offset, bits, step), bits]
        return Transfer(
            clock=self._clock,
            start_ns=start_ns,
            bits=bits,
            latency_ns=drawn_latency(link.latency, link.jitter, address),
            rate=course.course(WAYS[way]),
            origin_ns=self._origin_ns if isinstance(course.course(WAYS[way]), Course) else 0,
            marks=marks,
            lead=self._lead if way == DOWN else None,
        )

    def relay(self, child_id: str, number: int) -> "Relay":
        """What carries one message after the other down to a child. Raises UnknownChildError."""
        index = self._index(child_id)
        course = self.links.link_of(index)
        link = course.at(self._clock.now_ns() - self._origin_ns)
        latency_ns = drawn_latency(link.latency, link.jitter, [self.links.seed, self.links.tier, number, index, DOWN])
        return Relay(self._clock, course.course("down"), latency_ns, self._origin_ns)

    def _note(self, achieved: pb.Carried, number: int, index: int, way: int) -> None:
        achieved.link, achieved.direction, achieved.child = self.links.name, WAYS[way], index
        self._achieved[number, index, way] = achieved

    def take(self, number: int) -> list[pb.Carried]:
        """What the links have carried in a round, in the order of children; rounds before it are forgotten."""
        taken = [self._achieved[key] for key in sorted(self._achieved) if key[0] == number]
        self._achieved = {key: each for key, each in self._achieved.items() if key[0] > number}
        return taken


def transfers_of(experiment: Experiment, links: TierLinks, began_unix_ns: int = 0) -> Transfers | None:
    """What holds transfers back; None where nothing does. `began_unix_ns`: when training began, if that is known."""
    if not experiment.is_paced:
        return None
    transfers = Transfers(links)
    if began_unix_ns:
        transfers.began(since_ns(began_unix_ns))
    return transfers
