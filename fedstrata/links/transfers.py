"""Transfers on the real clock. A transfer between a parent and a child arrives when their links have had time to carry
it.

The parent delays both directions. For each piece, the parent calculates when the child's own link and the shared link
have carried the piece. The parent waits before it writes a piece, and after it has read a piece. Several pieces can be
under way at the same time, so latency does not reduce the rate.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedstrata.errors import SupersededError
from fedstrata.experiment.links import WAYS
from fedstrata.experiment.rates import AnyRate, bits_between, end_of
from fedstrata.links.shared_link import Broadcasts, SharedFlow, SharedLink
from fedstrata.links.tier_links import DOWN, UP, Line, TierLinks
from fedstrata.process.waiting import RealTime
from fedstrata.v1 import rounds_pb2 as pb

STAGGERED = 8  # number of offsets within a piece over which the flows of a shared link are spread
TIMER_STEP_NS = 1_000_000  # the event loop's timers count whole milliseconds
LEAD_STEP_NS, MOST_LEAD_NS = 50_000, 1_000_000


class Lead:
    """Estimate the median time that this machine needs to send the last part of a transfer. The parent sends each last
    part earlier by this estimate.

    After a slower last part, the estimate rises by a fixed step. After a faster last part, it falls by the step. So a
    single very slow part changes the estimate little.
    """

    def __init__(self) -> None:
        self.ns = 0

    def note(self, took_ns: int) -> None:
        """Adjust the estimate to the time that the last part of one transfer took."""
        step_ns = LEAD_STEP_NS if took_ns > self.ns else -LEAD_STEP_NS
        self.ns = min(MOST_LEAD_NS, max(0, self.ns + step_ns))


@dataclass
class Transfer:
    """Hold a transfer that is under way, and calculate when its bits arrive."""

    clock: RealTime
    start_ns: int
    bits: int
    latency_ns: int
    rate: AnyRate
    origin_ns: int = 0  # start of the time by which `rate` changes
    flow: SharedFlow | None = None  # on a shared link: the flow of this transfer or of its broadcast
    achieved: pb.Carried | None = None
    lead: Lead | None = None  # for downloads: how much earlier the last part is sent than it has to arrive
    released_ns: int = 0  # time at which the last part was sent
    is_superseded: bool = False  # whether the child has since begun another transfer in the same direction

    async def arrived(self, bits: int) -> None:
        """Wait until this many bits of the transfer have arrived. Raises SupersededError if another transfer has
        replaced this transfer.
        """
        there_ns = await self._left_ns(bits) + self.latency_ns
        if bits < self.bits:
            await self.clock.until(there_ns)
        else:  # the last part: its time is the end of the whole transfer
            await self.clock.until(there_ns - (self.lead.ns if self.lead is not None else 0), TIMER_STEP_NS)
            self.released_ns = self.clock.now_ns()
        self._check_current()

    def supersede(self) -> None:
        """Note that another transfer replaces this transfer. Callers that wait for this transfer give up."""
        self.is_superseded = True
        if self.flow is not None:
            self.flow.news.set()

    def _check_current(self) -> None:
        if self.is_superseded:
            raise SupersededError(
                "another transfer has begun on this link in the same direction; continue with that transfer"
            )

    async def all_arrived(self) -> None:
        """Wait until all bits of the transfer have arrived."""
        await self.arrived(self.bits)

    def come(self) -> int:
        """Return the number of bits that have arrived so far."""
        left_ns = self.clock.now_ns() - self.latency_ns
        own = self._come_on_own_link(left_ns)
        return own if self.flow is None else min(own, self.flow.come(left_ns))

    def _come_on_own_link(self, left_ns: int) -> int:
        if left_ns < self.start_ns:
            return 0
        carried = bits_between(self.start_ns - self.origin_ns, left_ns - self.origin_ns, self.rate)
        return self.bits if carried is None or self.rate is None else min(self.bits, carried)

    async def _left_ns(self, bits: int) -> int:
        """Return the time at which this many bits have left the child's own link and the shared link."""
        own_ns = self.origin_ns + end_of(self.start_ns - self.origin_ns, bits, self.rate)
        return own_ns if self.flow is None else max(own_ns, await self.flow.passed_ns(bits, self._check_current))

    async def over(self) -> None:
        """Record the bytes and the times of the transfer, which has just arrived completely."""
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


class Relayed:
    """Represent a relay over which messages reach a child at once. The subclass `Relay` delays them."""

    async def carry(self, there_ns: int, size: int) -> None:
        """Wait until a message of `size` bytes has reached the child. The message was ready to be sent at `there_ns`.
        Its delay begins then or, if later, when this object was created.
        """


class Relay(Relayed):
    """Delay messages to a child as the child's own link would, one message after the other."""

    def __init__(self, clock: RealTime, rate: AnyRate, latency_ns: int, origin_ns: int = 0) -> None:
        self._clock = clock
        self._origin_ns = origin_ns
        self._line = Line(rate)
        self._latency_ns = latency_ns
        self.began_ns = clock.now_ns()

    async def carry(self, there_ns: int, size: int) -> None:
        left_ns = self._line.carry(max(there_ns, self.began_ns) - self._origin_ns, 8 * size)
        await self._clock.until(self._origin_ns + left_ns + self._latency_ns)


class Transfers:
    """Delay the transfers between a parent and its children as their links would."""

    def __init__(self, links: TierLinks, clock: RealTime | None = None) -> None:
        self.links = links
        self._clock = clock or RealTime()
        self._origin_ns = self._clock.now_ns()
        self._shared: dict[int, SharedLink] = {}
        for way in (DOWN, UP):
            capacity = links.shared.rate(way)
            if capacity is not None:
                self._shared[way] = SharedLink(capacity, self._clock)
        self._broadcasts = Broadcasts(self._shared[DOWN]) if links.shared.is_broadcast else None
        self._newest: dict[tuple[int, int], Transfer] = {}  # newest transfers by child and direction
        self._lead = Lead()
        # results of transfers by round, child, direction, and whether they belong to a question in the round
        self._achieved: dict[tuple[int, int, int, bool], pb.Carried] = {}

    def now_ns(self) -> int:
        """Return the current time."""
        return self._clock.now_ns()

    def open_round(self) -> None:
        """Forget the models of the last round, because the next round sends other models."""
        if self._broadcasts is not None:
            self._broadcasts.forget()

    def began(self, ago_ns: int) -> None:
        """Set the start of the links' schedules to `ago_ns` nanoseconds before now. Rates and latencies change at times
        that count from this start. Call this before the first transfer on a shared link.
        """
        self._origin_ns = self._clock.now_ns() - max(0, ago_ns)
        for shared in self._shared.values():
            shared.origin_ns = self._origin_ns

    def piece_bytes(self, child_id: str, way: int) -> int:
        """Return the size of the pieces of a child's payloads, in bytes. Raises UnknownChildError if the run has no
        such child.
        """
        return self.links.piece_bytes(self.links.number_of(child_id), way)

    @contextmanager
    def under_way(
        self, child_id: str, way: int, number: int, size: int, before: int = 0, *, model: int | None = None,
        is_answer: bool = False,
    ) -> Iterator[Transfer]:  # fmt: skip
        """Yield a transfer of `size` bytes in the round `number`. The transfer ends at the end of the `with` block. Its
        first `before` bytes are a header.

        A child's link carries one transfer at a time in each direction. A new transfer ends the old transfer, which
        then no longer uses the shared link. `model` is the number of the round's model if the transfer is the whole
        model, which may be broadcast. `is_answer` says that the transfer answers a question in the round.

        Raises:
            UnknownChildError: the run has no such child.
        """
        index = self.links.number_of(child_id)
        superseded = self._newest.get((index, way))
        if superseded is not None:
            superseded.supersede()
        self._newest[index, way] = transfer = self._transfer(index, way, number, 8 * size, is_answer=is_answer)
        try:
            with self._sharing(transfer, index, way, 8 * before, model):
                yield transfer
        finally:
            if self._newest.get((index, way)) is transfer:
                del self._newest[index, way]
        if transfer.achieved is not None:
            self._note(transfer.achieved, number, index, way, is_answer=is_answer)

    @contextmanager
    def _sharing(self, transfer: Transfer, index: int, way: int, before: int, model: int | None) -> Iterator[None]:
        """Send the transfer over the shared link as well, if this direction has one, until the `with` block ends."""
        shared, broadcasts = self._shared.get(way), self._broadcasts
        if shared is None or not transfer.bits:
            yield
        elif broadcasts is None or way != DOWN or model is None or broadcasts.has_begun(model, index):
            transfer.flow = SharedFlow(self._marks(transfer.bits, before, self.links.piece_bytes(index, way), index))
            flow, transfer.start_ns = shared.begin(transfer.flow, transfer.rate)
            try:
                yield
            finally:
                shared.drop(flow)
        else:
            marks = self._marks(transfer.bits, before, self.links.piece_bytes(None, way), model)
            broadcast = broadcasts.join(model, index, marks)
            transfer.flow, transfer.start_ns = broadcast.flow, self._clock.now_ns()
            try:
                yield
            finally:
                broadcasts.leave(model, broadcast)

    @staticmethod
    def _marks(bits: int, before: int, piece_bytes: int, place: int) -> list[int]:
        """Return the positions, in bits, at which the pieces of a payload end. The first `before` bits are a header.

        `place` is the index of the child or, for a broadcast, the number of the model. It shifts all positions except
        the last. So the pieces of flows that begin together do not arrive together.
        """
        step = 8 * piece_bytes
        offset = step * (place % STAGGERED) // STAGGERED
        return [*range(before + step + offset, bits, step), bits]

    def _transfer(self, index: int, way: int, number: int, bits: int, *, is_answer: bool) -> Transfer:
        start_ns = self._clock.now_ns()
        return Transfer(
            clock=self._clock,
            start_ns=start_ns,
            bits=bits,
            latency_ns=self._latency_ns(number, index, way, start_ns, is_answer=is_answer),
            rate=self.links.link_of(index).rate(way),
            origin_ns=self._origin_ns,
            lead=self._lead if way == DOWN else None,
        )

    def _latency_ns(self, number: int, index: int, way: int, start_ns: int, *, is_answer: bool = False) -> int:
        """Return the latency of a transfer that starts at `start_ns`. The arguments are as in `TierLinks.latency_ns`,
        but `start_ns` is a time of the clock.
        """
        return self.links.latency_ns(number, index, way, start_ns - self._origin_ns, is_answer=is_answer)

    async def heard(self, child_id: str, number: int, said_ns: int) -> None:
        """Wait until a child has received the message that says how the round `number` continues. The message was sent
        at `said_ns`, and arrives one latency later. Raises UnknownChildError if the run has no such child.
        """
        index = self.links.number_of(child_id)
        latency_ns = self._latency_ns(number, index, DOWN, said_ns, is_answer=True)
        if self._clock.now_ns() >= said_ns + latency_ns:
            return  # the child asks so late that the message would have arrived
        await self._clock.until(said_ns + latency_ns, TIMER_STEP_NS)
        word = pb.Carried(latency_ns=latency_ns, achieved_latency_ns=self._clock.now_ns() - said_ns)
        self._note(word, number, index, DOWN, is_answer=True)

    def relay(self, child_id: str, number: int) -> "Relay":
        """Return an object that delays messages to a child in the round `number`. Raises UnknownChildError if the run
        has no such child.
        """
        index, now_ns = self.links.number_of(child_id), self._clock.now_ns()
        rate, latency_ns = self.links.link_of(index).rate(DOWN), self._latency_ns(number, index, DOWN, now_ns)
        return Relay(self._clock, rate, latency_ns, self._origin_ns)

    def _note(self, achieved: pb.Carried, number: int, index: int, way: int, *, is_answer: bool) -> None:
        achieved.link, achieved.direction, achieved.child = self.links.name, WAYS[way], index
        achieved.is_answer = is_answer
        self._achieved[number, index, way, is_answer] = achieved

    def take(self, number: int) -> list[pb.Carried]:
        """Return what the links have carried in a round, ordered by child. Forget the transfers of this round and of
        earlier rounds.
        """
        taken = [self._achieved[key] for key in sorted(self._achieved) if key[0] == number]
        self._achieved = {key: each for key, each in self._achieved.items() if key[0] > number}
        return taken
