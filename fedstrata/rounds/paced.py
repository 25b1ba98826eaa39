"""Models and updates on the real clock: held back by the parent until their links would have carried them."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from typing import Any, Self

from fedstrata.clock.calendar import DOWN, UP
from fedstrata.clock.transfers import Transfer, Transfers
from fedstrata.errors import OffsetError
from fedstrata.process.fault_points import reach
from fedstrata.rounds.offer import Offer
from fedstrata.rounds.one_at_a_time import Turns
from fedstrata.rounds.open_round import OpenRound, resumed_at
from fedstrata.rounds.result import Uploaded
from fedstrata.rpc.chunk import serialised_chunk
from fedstrata.v1 import rounds_pb2 as pb


async def paced_model(
    transfers: Transfers, turns: Turns, opened: OpenRound, request: pb.FetchModelRequest
) -> AsyncIterator[pb.ModelPart | bytes]:
    """The parts of the open round's model for a child, each when it has arrived."""
    offer, child_id = opened.offer_to(request.child_id), request.child_id
    offset = resumed_at(request, offer) if offer.small_reply is None else 0
    size, before = offer.whole_bytes - offset, offer.header.ByteSize()
    model = None if offset else offer.cluster
    with transfers.under_way(child_id, DOWN, opened.number, size, before, model=model) as transfer:
        if offer.small_reply is not None:
            await transfer.all_arrived()
            yield offer.small_reply
            reach("download", opened.number)
        else:
            yield offer.header_part(offset)
            piece_bytes = transfers.piece_bytes(child_id, DOWN)
            pieces = _pieces(turns, child_id, offer, offset=offset, transfer=transfer, piece_bytes=piece_bytes)
            async for piece in pieces:
                yield serialised_chunk(pb.ModelPart, piece)
                reach("download", opened.number)
        await transfer.over()


async def _pieces(
    turns: Turns, child_id: str, offer: Offer, *, offset: int, transfer: Transfer, piece_bytes: int
) -> AsyncIterator[memoryview]:
    """The payload from a byte on, each piece when it has arrived; no turn is held while one is on its way.

    Where this is held up itself, all that has arrived meanwhile is one piece.
    """
    payload_bytes = offer.codec.payload_bytes
    while offset < payload_bytes:
        async with turns.one(child_id):
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


def arriving(
    transfers: Transfers | None, header: pb.UpdateHeader, parts: AsyncIterator[Any]
) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
    """The parts of an update that follow its header, which has been checked: held back where links take time."""
    if transfers is None:
        return nullcontext(parts)
    if not 0 <= header.offset <= header.payload.payload_bytes:
        raise OffsetError(f"an upload of {header.payload.payload_bytes} bytes goes on at byte {header.offset}")
    return _ArrivingUpdate(transfers, header, parts)


class _ArrivingUpdate(AbstractAsyncContextManager[AsyncIterator[Any]]):
    """Gives each part when it has arrived; the first is waited for before anything is done with the update."""

    def __init__(self, transfers: Transfers, header: pb.UpdateHeader, parts: AsyncIterator[Any]) -> None:
        self._parts = parts
        self._before = Uploaded.of(header).up_bytes - header.payload.payload_bytes
        self._payload_bytes = header.payload.payload_bytes - header.offset
        self._come = 0
        self._first: Any = None
        self._under_way = ExitStack()
        size = self._before + self._payload_bytes
        self._transfer = self._under_way.enter_context(
            transfers.under_way(header.child_id, UP, header.round, size, self._before)
        )

    async def __aenter__(self) -> Self:
        """Wait until its first part has arrived, or the header where none follows."""
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


async def arrived_answer(transfers: Transfers | None, child_id: str, number: int, size: int) -> None:
    """Wait until what answers a round's question has arrived, a child's answer or those of all an LPS's devices."""
    if transfers is not None:
        with transfers.under_way(child_id, UP, number, size, is_answer=True) as transfer:
            await transfer.all_arrived()
            await transfer.over()
