"""Transfers on the real clock: what goes between a parent and a child is there when its links would have carried it.

The parent holds both directions back, by one calendar for a child's own link and for one that all children share: what
it sends before it is written, what it receives before it is read on. Latency is no pause: pieces that follow each other
are under way at the same time.
"""

import asyncio
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from fedstrata.errors import UnknownChildError
from fedstrata.experiment import Experiment
from fedstrata.link import until_ns
from fedstrata.link_calendar import (
    BEFORE,
    DEVICE_LINK,
    DOWN,
    LPS_LINK,
    SECOND_NS,
    FairLink,
    Line,
    drawn_latency,
    end_of,
)
from fedstrata.link_settings import LinkTimes, SharedRates
from fedstrata.quoting import quoted
from fedstrata.tensors import CHUNK_BYTES
from fedstrata.v1 import rounds_pb2 as pb

PIECE_NS = 10_000_000  # of link time: what a payload that is not small is cut into
LEAST_PIECE_BYTES = 1 << 10
WAYS = ("down", "up")  # by the numbers of link_calendar
LPS_NAME = re.compile(r"lps-(\d{1,9})")


class Clock(Protocol):
    """What tells the time, in nanoseconds, and lets it pass."""

    def now_ns(self) -> int:
        """The time now."""

    async def until(self, at_ns: int) -> None:
        """Wait until a time."""

    def call_at(self, at_ns: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Have something called at a time, or by chance a little before."""


class RealTime:
    """The machine's own time."""

    def now_ns(self) -> int:
        """Nanoseconds since some time."""
        return time.monotonic_ns()

    async def until(self, at_ns: int) -> None:
        """Wait until a time."""
        await until_ns(at_ns)

    def call_at(self, at_ns: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Have something called at a time."""
        return asyncio.get_running_loop().call_later(max(0, at_ns - time.monotonic_ns()) / 1e9, call)


@dataclass
class Transfer:
    """One transfer under way: its links' calendar, and what has come of it."""

    clock: Clock
    start_ns: int
    bits: int
    latency_ns: int
    rate: int | None
    marks: Sequence[int] = ()  # on a shared link: bits at which its passing is noted, the last all of them
    passed: list[int] = field(default_factory=list)  # when it was at these marks
    news: asyncio.Event = field(default_factory=asyncio.Event)
    achieved: pb.Carried | None = None

    async def arrived(self, bits: int) -> None:
        """Wait until so many of its bits have arrived."""
        await self.clock.until(await self._left_ns(bits) + self.latency_ns)

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
        return min(self.bits, (left_ns - self.start_ns) * self.rate // SECOND_NS)

    async def _left_ns(self, bits: int) -> int:
        """When so many bits have left the links."""
        if not self.marks:
            return end_of(self.start_ns, bits, self.rate)
        number = bisect_left(self.marks, bits)
        while len(self.passed) <= number:
            self.news.clear()
            await self.news.wait()
        return self.passed[number]

    async def over(self) -> None:
        """Note what came of it: all of it is there now."""
        left_ns, now_ns = await self._left_ns(self.bits), self.clock.now_ns()
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


@dataclass(frozen=True, kw_only=True)
class TierLinks:
    """The links between a parent and its children: which is whose, and the address of their draws."""

    name: str
    seed: int
    tier: int  # in the address of draws
    index_of: Callable[[str], int | None]  # of a child; None for one that there is not
    link_of: Callable[[int], LinkTimes]
    shared: SharedRates

    def capacity(self, way: int) -> int | None:
        """The rate of the link that all share."""
        return self.shared.down_rate if way == DOWN else self.shared.up_rate

    def piece_bytes(self, index: int, way: int) -> int:
        """How large the pieces of a payload are that is not small: at most ten milliseconds of the link."""
        rates = [each for each in (self.link_of(index).rate(WAYS[way]), self.capacity(way)) if each is not None]
        if not rates:
            return CHUNK_BYTES
        wanted = min(rates) * PIECE_NS // (8 * 10**9)
        return max(LEAST_PIECE_BYTES, min(CHUNK_BYTES, wanted)) & ~7  # whole elements of any encoding

    def slowest_s(self, index: int, payload_bytes: int, children: int) -> float:
        """The longest that a payload takes, down and up, where all children share what is shared."""
        link, seconds = self.link_of(index), 0.0
        for way in (0, 1):
            capacity = self.capacity(way)
            share = None if capacity is None else max(1, capacity // max(1, children))
            rates = [each for each in (link.rate(WAYS[way]), share) if each is not None]
            bits = 8 * (payload_bytes + HEADER_BYTES)
            seconds += bits / min(rates) if rates else 0.0
        return seconds + 2 * (link.latency + link.jitter) / 1e9


HEADER_BYTES = 4 << 10  # more than the headers of a message have


class Relay:
    """One direction of a child's own link, for messages that follow each other as they come."""

    def __init__(self, clock: Clock, rate: int | None, latency_ns: int) -> None:
        self._clock = clock
        self._line = Line(rate)
        self._latency_ns = latency_ns
        self.began_ns = clock.now_ns()

    async def carry(self, there_ns: int, size: int) -> None:
        """Wait until a message of so many bytes has arrived that was there to be sent at a time, or as this began."""
        left_ns = self._line.carry(max(there_ns, self.began_ns), 8 * size)
        await self._clock.until(left_ns + self._latency_ns)


class Transfers:
    """What goes between a parent and its children, held back as their links are."""

    def __init__(self, links: TierLinks, clock: Clock | None = None) -> None:
        self.links = links
        self._clock = clock or RealTime()
        self._shared: dict[int, _SharedLink] = {}
        for way in (0, 1):
            capacity = links.capacity(way)
            if capacity is not None:
                self._shared[way] = _SharedLink(capacity, self._clock)
        self._achieved: dict[tuple[int, int, int], pb.Carried] = {}  # by round, child and direction

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

        Raises:
            UnknownChildError: there is no such child.
        """
        index = self._index(child_id)
        transfer = self._transfer(index, way, number, 8 * size, 8 * before)
        shared = self._shared.get(way)
        flow = None if shared is None or not transfer.bits else shared.begin(transfer)
        try:
            yield transfer
        finally:
            if shared is not None and flow is not None:
                shared.drop(flow)
        if transfer.achieved is not None:
            self._note(transfer.achieved, number, index, way)

    def _transfer(self, index: int, way: int, number: int, bits: int, before: int) -> Transfer:
        links, link = self.links, self.links.link_of(index)
        address = [links.seed, links.tier, number, index, way]
        marks: list[int] = []
        if way in self._shared and bits:
            step = 8 * links.piece_bytes(index, way)
            marks = [*range(before + step, bits, step), bits]
        return Transfer(
            clock=self._clock,
            start_ns=self._clock.now_ns(),
            bits=bits,
            latency_ns=drawn_latency(link.latency, link.jitter, address),
            rate=link.rate(WAYS[way]),
            marks=marks,
        )

    def relay(self, child_id: str, number: int) -> "Relay":
        """What carries one message after the other down to a child. Raises UnknownChildError."""
        index = self._index(child_id)
        link = self.links.link_of(index)
        latency_ns = drawn_latency(link.latency, link.jitter, [self.links.seed, self.links.tier, number, index, DOWN])
        return Relay(self._clock, link.rate("down"), latency_ns)

    def _note(self, achieved: pb.Carried, number: int, index: int, way: int) -> None:
        achieved.link, achieved.direction, achieved.child = self.links.name, WAYS[way], index
        self._achieved[number, index, way] = achieved

    def take(self, number: int) -> list[pb.Carried]:
        """What the links have carried in a round, in the order of children; rounds before it are forgotten."""
        taken = [self._achieved[key] for key in sorted(self._achieved) if key[0] == number]
        self._achieved = {key: each for key, each in self._achieved.items() if key[0] > number}
        return taken


def device_links(experiment: Experiment, *, to_gps: bool = False) -> TierLinks:
    """The links of devices, to their LPS, or to the GPS before training."""
    common, own = experiment.links.device_lps.resolved(), experiment.links.of_devices()
    indexes: Mapping[str, int] = {name: index for index, name in enumerate(experiment.device_ids())}
    shared = experiment.links.shared
    return TierLinks(
        name="device-gps" if to_gps else "device-lps",
        seed=experiment.seed,
        tier=BEFORE if to_gps else DEVICE_LINK,
        index_of=indexes.get,
        link_of=lambda index: own.get(index, common),
        shared=shared.device_lps if shared is not None and not to_gps else SharedRates(),
    )


def lps_links(experiment: Experiment) -> TierLinks:
    """The links of LPSs, one for each cluster."""
    link = experiment.links.lps_gps.resolved()
    return TierLinks(
        name="lps-gps",
        seed=experiment.seed,
        tier=LPS_LINK,
        index_of=_lps_number,
        link_of=lambda index: link,
        shared=SharedRates(),
    )


def _lps_number(name: str) -> int | None:
    found = LPS_NAME.fullmatch(name)
    return int(found[1]) if found else None


def transfers_of(experiment: Experiment, links: TierLinks) -> Transfers | None:
    """What holds transfers back; None where nothing does."""
    return Transfers(links) if experiment.is_paced else None
