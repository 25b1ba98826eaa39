"""The clocks that a round between a parent and its children uses.

The parent's clock waits until bytes have arrived. It also says whether each update must report how much its child has
computed. The child's clock says how long calls may take.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from typing import Any, Protocol, Self

from fedstrata.clock.exchanged import Exchanged
from fedstrata.errors import OffsetError
from fedstrata.links.tier_links import DOWN, UP, TierLinks
from fedstrata.links.transfers import Relayed, Transfer, Transfers
from fedstrata.process.fault_points import reach
from fedstrata.rpc.chunk import serialised_chunk
from fedstrata.tensors import CHUNK_BYTES, PayloadCodec
from fedstrata.v1 import rounds_pb2 as pb

TakeTurn = Callable[[str], AbstractAsyncContextManager[Any]]  # `Turns.one`: waits for a child's turn


class Sendable(Protocol):
    """Define the interface to a model that a parent sends to the children of a round."""

    cluster: int
    header: pb.ModelHeader
    codec: PayloadCodec
    chunks: Any  # chunks of the payload, each serialised once for all children
    small_reply: bytes | None

    @property
    def whole_bytes(self) -> int:
        """The size of the header and the payload, in bytes."""

    def header_part(self, offset: int) -> pb.ModelPart:
        """Return the first message of a download that begins at byte `offset` of the payload."""

    def sent(self, take_turn: TakeTurn, child_id: str, number: int, offset: int) -> AsyncIterator[pb.ModelPart | bytes]:
        """Return the messages of a download without delays."""


class ParentClock:
    """Represent the clock of a parent without delays. Bytes arrive as fast as the machines carry them."""

    takes_turns = True  # whether a stream that waits for its next bytes keeps its child's turn

    def __init__(self, *, wants_work: bool = False) -> None:
        """Set `wants_work`: whether a child must report in each update how much it has computed. The virtual clock
        calculates times from these reports, and the real clock records them.
        """
        self.wants_work = wants_work

    def now_ns(self) -> int:
        """Return the current time in nanoseconds, counted from an arbitrary time. If nothing is delayed, return 0."""
        return 0

    def began(self, ago_ns: int) -> None:
        """Note that training began `ago_ns` nanoseconds before now. The times at which links change their rates and
        latencies count from then.
        """

    def round_opened(self) -> None:
        """Note that a new round is open. No further children join broadcasts of the last round's models."""

    def take(self, number: int) -> list[pb.Carried]:
        """Return how much the links have carried in a round. Forget this round and earlier rounds."""
        return []

    async def heard(self, child_id: str, number: int, said_ns: int) -> None:
        """Wait until a child has received the message that says how a round continues. The message was sent at
        `said_ns`. Raises UnknownChildError if the run has no such child.
        """

    async def answer_arrived(self, child_id: str, number: int, size: int, *, in_round: bool = True) -> None:
        """Wait until a child's answers to a question have arrived. `in_round` says whether the parent asks the question
        in a round or before training.
        """

    async def announced(self, header: pb.UpdateHeader) -> None:
        """Wait until a child's link has carried the update that the child announces. When the child then sends the
        update, it is not delayed again.
        """

    def relay(self, child_id: str, number: int) -> Relayed:
        """Return an object that delays answers of other devices on their way to a child, one after the other."""
        return Relayed()

    def model(
        self, take_turn: TakeTurn, offer: Sendable, child_id: str, number: int, offset: int
    ) -> AsyncIterator[pb.ModelPart | bytes]:
        """Return the messages with which a round's model is sent to a child, from byte `offset` on."""
        return offer.sent(take_turn, child_id, number, offset)

    def arriving(
        self, header: pb.UpdateHeader, parts: AsyncIterator[Any]
    ) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """Return a context manager. Its block gets an iterator over the parts of an update after the header, which the
        caller has already checked.
        """
        return nullcontext(parts)


class HeldBack(ParentClock):
    """Delay models, answers and updates until their links have had time to carry them."""

    takes_turns = False

    def __init__(self, transfers: Transfers, *, wants_work: bool = False) -> None:
        super().__init__(wants_work=wants_work)
        self._transfers = transfers
        self._carried: dict[str, int] = {}  # round of the newest announced update that a link has carried, by child

    def now_ns(self) -> int:
        return self._transfers.now_ns()

    def began(self, ago_ns: int) -> None:
        self._transfers.began(ago_ns)

    def round_opened(self) -> None:
        self._transfers.open_round()

    def take(self, number: int) -> list[pb.Carried]:
        return self._transfers.take(number)

    async def heard(self, child_id: str, number: int, said_ns: int) -> None:
        await self._transfers.heard(child_id, number, said_ns)

    async def answer_arrived(self, child_id: str, number: int, size: int, *, in_round: bool = True) -> None:
        await self._carry(child_id, number, size, is_answer=in_round)

    async def announced(self, header: pb.UpdateHeader) -> None:
        child_id, number = header.child_id, header.round
        if self._carried.get(child_id) != number:
            await self._carry(child_id, number, Exchanged.of_update(header).up_bytes, is_answer=False)
            self._carried[child_id] = number

    async def _carry(self, child_id: str, number: int, size: int, *, is_answer: bool) -> None:
        """Wait until a child's link has carried this many bytes up."""
        with self._transfers.under_way(child_id, UP, number, size, is_answer=is_answer) as transfer:
            await transfer.all_arrived()
            await transfer.over()

    def relay(self, child_id: str, number: int) -> Relayed:
        return self._transfers.relay(child_id, number)

    async def model(
        self, take_turn: TakeTurn, offer: Sendable, child_id: str, number: int, offset: int
    ) -> AsyncIterator[pb.ModelPart | bytes]:
        """Yield each part of a model at the time at which the link delivers it."""
        size, before = offer.whole_bytes - offset, offer.header.ByteSize()
        whole = None if offset else offer.cluster
        with self._transfers.under_way(child_id, DOWN, number, size, before, model=whole) as transfer:
            if offer.small_reply is not None:
                await transfer.all_arrived()
                yield offer.small_reply
                reach("download", number)
            else:
                yield offer.header_part(offset)
                piece_bytes = self._transfers.piece_bytes(child_id, DOWN)
                pieces = _pieces(take_turn, child_id, offer, offset=offset, transfer=transfer, piece_bytes=piece_bytes)
                async for piece in pieces:
                    yield serialised_chunk(pb.ModelPart, piece)
                    reach("download", number)
            await transfer.over()

    def arriving(
        self, header: pb.UpdateHeader, parts: AsyncIterator[Any]
    ) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        if not 0 <= header.offset <= header.payload.payload_bytes:
            raise OffsetError(f"an upload of {header.payload.payload_bytes} bytes cannot begin at byte {header.offset}")
        if self._carried.get(header.child_id) == header.round:
            return nullcontext(parts)
        return _ArrivingUpdate(self._transfers, header, parts)


async def _pieces(
    take_turn: TakeTurn, child_id: str, offer: Sendable, *, offset: int, transfer: Transfer, piece_bytes: int
) -> AsyncIterator[memoryview]:
    """Yield the payload from byte `offset` on, each piece at its arrival time. This download takes a turn (see `Turns`)
    only to read a chunk. While it waits for a piece to arrive, other downloads can take turns.

    If the consumer is slow, all bytes that have arrived in the meantime come as one piece.
    """
    payload_bytes = offer.codec.payload_bytes
    while offset < payload_bytes:
        async with take_turn(child_id):
            chunk = await offer.chunks.at(offset)
        end = offer.chunks.end_of(offset)
        data, left = memoryview(chunk)[len(chunk) - (end - offset) :], payload_bytes - offset
        start = 0
        while start < len(data):
            wanted = min(start + piece_bytes, len(data))
            await transfer.arrived(transfer.bits - 8 * (left - wanted))
            come = left - (transfer.bits - transfer.come()) // 8 & ~7
            stop = max(wanted, min(come, len(data)))
            yield data[start:stop]
            start = stop
        offset = end


class _ArrivingUpdate(AbstractAsyncContextManager[AsyncIterator[Any]]):
    """Iterate over the parts of an update, each at its arrival time. This object is also a context manager. On entry,
    it waits until the first part has arrived.
    """

    def __init__(self, transfers: Transfers, header: pb.UpdateHeader, parts: AsyncIterator[Any]) -> None:
        self._parts = parts
        self._before = Exchanged.of_update(header).up_bytes - header.payload.payload_bytes
        self._payload_bytes = header.payload.payload_bytes - header.offset
        self._come = 0
        self._first: Any = None
        self._under_way = ExitStack()
        size = self._before + self._payload_bytes
        self._transfer = self._under_way.enter_context(
            transfers.under_way(header.child_id, UP, header.round, size, self._before)
        )

    async def __aenter__(self) -> Self:
        """Wait until the first part has arrived. If the update has only a header, wait until the header has arrived."""
        try:
            if self._payload_bytes > 0:
                self._first = await anext(self, None)
            else:
                await self._end()
        except BaseException:
            self._under_way.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self._under_way.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        part = await anext(self._parts)
        before, self._come = self._come, self._come + len(part.data)
        if self._come < self._payload_bytes:
            await self._transfer.arrived(8 * (self._before + self._come))
        elif before < self._payload_bytes:
            await self._end()
        return part

    async def _end(self) -> None:
        await self._transfer.all_arrived()
        await self._transfer.over()
        self._under_way.close()


class ChildClock:
    """Represent the clock of a child in a run without a clock. Calls get no extra time, and bytes are not counted."""

    slowest_s = 0.0  # duration of the largest exchange of a round on the child's link
    piece_bytes = CHUNK_BYTES  # size of the pieces of a payload

    def on_link_s(self, size: int) -> float:
        """Return the seconds that this many bytes take on the child's link."""
        return 0.0

    def whole_bytes(self, header: pb.ModelHeader) -> int:
        """Return the size of a model with its header, in bytes, as in a transfer that was never interrupted. If the
        clock counts no bytes, return 0.
        """
        return 0


class CountingChild(ChildClock):
    """Count the bytes of models, because the virtual clock calculates times from them."""

    def whole_bytes(self, header: pb.ModelHeader) -> int:
        return Exchanged.of_model(header).down_bytes


class PacedChild(ChildClock):
    """Give calls the additional time that their links take, and cut payloads into pieces that suit the links."""

    def __init__(self, links: TierLinks, child_id: str, *, payload_bytes: int = 0, children: int = 1) -> None:
        """Set the child and its links. `payload_bytes` is the size of the largest payload in either direction.
        `children` is the number of children that share the link.
        """
        self._links, self._index = links, links.index_of(child_id) or 0
        self.slowest_s = links.slowest_s(self._index, payload_bytes, children)
        self.piece_bytes = links.piece_bytes(self._index, UP)

    def on_link_s(self, size: int) -> float:
        return self._links.slowest_s(self._index, size, 1)
