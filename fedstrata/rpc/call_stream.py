"""One stream on which a child calls FetchModel and SubmitUpdate alternately. A round then needs messages, but no new
calls. With a small model, a round takes one message in each direction.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Any

import grpc

from fedstrata.process.waiting import TimeLimit
from fedstrata.rpc.chunk import Whole
from fedstrata.rpc.streamed import broken
from fedstrata.v1 import rounds_pb2 as pb


class ParentStream:
    """Hold one child's stream to its parent. The stream is opened when it is needed, and again after a cut.

    The stream has no deadline. Each exchange on the stream has the deadline that it would have as a call without a
    stream.
    """

    def __init__(self, attend: Any) -> None:
        """Set `attend`, the stub's method for the call `Attend`."""
        self._attend = attend
        # A plain channel has no `connection`, because it never moves to another connection.
        self._connection: Callable[[], object] = getattr(attend, "connection", lambda: None)
        self._began_on: object = None
        self._call: Any = None
        self._is_in_exchange = False
        self._limit = TimeLimit()

    async def exchange(
        self, parts: Iterable[pb.UpdatePart | bytes], timeout_s: float, *, wait_for_ready: bool = True
    ) -> AsyncIterator[Any]:
        """Send a request or an update, and yield the parts of the next model, or of another reply. If the parent did
        not accept the update, first yield the parent's refusal. Raises AioRpcError like the call FetchModel.
        """
        await self._move(timeout_s)
        self._begin(wait_for_ready=wait_for_ready)
        part = await self._within(timeout_s, self._answer(parts))
        while part.HasField("reply") or part.HasField("roster"):
            yield part
            part = await self._within(timeout_s, self._read())
        if part.HasField("finished"):
            await self._take_leave(timeout_s)
        header = part.header if part.HasField("header") else pb.ModelHeader()
        left = header.payload.payload_bytes - header.offset
        came_along = part.chunk if isinstance(part, Whole) else None
        if came_along is not None:
            left -= len(came_along.data)
        self._is_in_exchange = left > 0
        yield part
        if came_along is not None:
            yield came_along
        while left > 0:
            part = await self._within(timeout_s, self._read())
            left -= len(part.data)
            self._is_in_exchange = left > 0
            yield part

    async def _answer(self, parts: Iterable[pb.UpdatePart | bytes]) -> Any:
        """Send some parts, and return the first part of the reply."""
        for part in parts:
            await self._write(part)
            del part  # releases the memory of this chunk before the next one is made
        return await self._read()

    def close(self) -> None:
        """End the stream."""
        self._limit.close()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def _take_leave(self, timeout_s: float) -> None:
        """End the stream, and wait until the parent has ended it too. So the parent knows that the child has received
        the last reply.
        """

        async def leave() -> None:
            await self._call.done_writing()
            while await self._call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                pass

        # The child already has the last reply, so errors do not matter. If a stream breaks while it is half closed,
        # gRPC raises InternalError.
        with suppress(grpc.aio.AioRpcError, grpc.aio.InternalError):
            await self._within(timeout_s, leave())

    async def _move(self, timeout_s: float) -> None:
        """If the channel has moved to a new connection, end the stream on the old one. This happens only between two
        exchanges.
        """
        if self._call is not None and not self._is_in_exchange and self._connection() is not self._began_on:
            if not self._call.done():
                await self._take_leave(timeout_s)
            self.close()

    def _begin(self, *, wait_for_ready: bool) -> None:
        """Start an exchange. If there is no stream, or if the last exchange was incomplete, first open a new stream."""
        if self._is_in_exchange or (self._call is not None and self._call.done()):
            self.close()
        if self._call is None:
            self._began_on = self._connection()
            self._call = self._attend(wait_for_ready=wait_for_ready)
        self._is_in_exchange = True

    async def _write(self, part: pb.UpdatePart | bytes) -> None:
        try:
            await self._call.write(part)
        except asyncio.InvalidStateError:  # the parent has ended the stream; reading raises the reason
            await self._read()

    async def _read(self) -> Any:
        part = await self._call.read()
        if part is grpc.aio.EOF:  # type: ignore[attr-defined]
            raise broken(grpc.StatusCode.UNAVAILABLE, "the parent ended the stream")
        return part

    async def _within(self, timeout_s: float, step: Any) -> Any:
        try:
            return await self._limit.hold(timeout_s, step)
        except TimeoutError:
            self.close()
            raise broken(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {timeout_s:g} s") from None
