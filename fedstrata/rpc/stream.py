"""Streams from a child, read part by part. So each part is in memory only while it is processed."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc

from fedstrata.errors import PayloadError, SupersededError
from fedstrata.rpc.chunk import Chunk, Whole

CHUNKS_AT_ONCE = 4
LONGEST_TURN_S = 0.5  # then the turn ends, so that a stream on a slow link does not delay the others
Part = TypeVar("Part")


class Parts:
    """Read the parts that a child sends. Each part is read only when the caller requests it, and this object keeps no
    part.

    gRPC's own iterator keeps the last part until the next part arrives. This would need a chunk of memory per waiting
    child. If one message has a header and a payload, the payload follows as a separate part.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._came_along: Chunk | None = None

    def __aiter__(self) -> "Parts":
        return self

    async def __anext__(self) -> Any:
        if self._came_along is not None:
            chunk, self._came_along = self._came_along, None
            return chunk
        part = await self._context.read()
        if isinstance(part, Whole):
            self._came_along = part.chunk
            return part
        if part is grpc.aio.EOF:  # type: ignore[attr-defined]
            raise StopAsyncIteration
        return part


class Supersedable:
    """Represent the processing of one stream. The processing ends early if the sender begins a newer stream for the
    same payload.
    """

    _limit: asyncio.Timeout | None = None

    @asynccontextmanager
    async def until_superseded(self, sender: str) -> AsyncIterator[None]:
        """Abort the enclosed block if the sender begins a newer stream, even while the block waits for the sender.

        Raises:
            SupersededError: the sender has begun a newer stream.
        """
        try:
            async with asyncio.timeout(None) as self._limit:
                yield
        except TimeoutError:
            raise SupersededError(f"{sender} has begun this upload again on another stream; this stream ends") from None
        finally:
            self._limit = None

    def supersede(self) -> None:
        """Note that the sender has begun a newer stream."""
        if self._limit is not None:
            self._limit.reschedule(0.0)


async def header_first(parts: AsyncIterator[Any], what: str) -> Any:
    """Return the header at the start of a stream. Raises PayloadError if the stream has none."""
    return (await first_part(parts, what)).header


async def first_part(parts: AsyncIterator[Any], what: str) -> Any:
    """Return a stream's first part. Raises PayloadError, which names `what`, if this is no header."""
    first = await anext(parts, None)
    if first is None or first.WhichOneof("part") != "header":
        raise PayloadError(f"{what} must begin with its header")
    return first


async def write_all(parts: AsyncIterator[Any], context: Any) -> None:
    """Send parts to a child without keeping them. A gRPC handler that yields parts would keep each part in memory until
    the next part is made.
    """
    async for part in parts:
        await context.write(part)
        del part


class Turns:
    """Limit how many chunks are processed at the same time: each chunk needs a turn. So memory does not grow with the
    number of children that send at the same time.

    A child has one turn at a time. Turns are short, so no child delays the others for long.
    """

    def __init__(self, at_once: int = CHUNKS_AT_ONCE, longest_s: float = LONGEST_TURN_S) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._of_child: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(1))
        self._longest_s = longest_s

    @asynccontextmanager
    async def one(self, child_id: str) -> AsyncIterator[None]:
        """Give a child its turn. The turn ends with the block. If the block lasts too long, the turn ends earlier.

        If a child has several streams, the streams take turns one after another.
        """
        own = self._of_child[child_id]
        await own.acquire()
        try:
            await self._free.acquire()
        except BaseException:
            own.release()
            raise
        give_back = _once(self._free.release, own.release)
        late = asyncio.get_running_loop().call_later(self._longest_s, give_back)
        try:
            yield
        finally:
            late.cancel()
            give_back()

    async def of(self, child_id: str, parts: AsyncIterator[Part]) -> AsyncGenerator[Part, None]:
        """Yield a child's parts. A part is read and processed only while this child has its turn (`one`)."""
        while True:
            async with self.one(child_id):
                try:
                    part = await anext(parts)
                except StopAsyncIteration:
                    return
                yield part
                del part  # releases the memory of this chunk while the child waits for its next turn


def _once(*what: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls the given functions in reverse order. Only the first call of the returned function
    does this.
    """
    left = [*what]

    def call() -> None:
        while left:
            left.pop()()

    return call
