"""Turns: few streams move a chunk at a time, so that memory does not grow with the children who come at once."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

CHUNKS_AT_ONCE = 4
LONGEST_TURN_S = 0.5  # who takes longer is on a slow link, and goes on beside the others
Part = TypeVar("Part")


class Turns:
    """Hands out turns, each for one chunk, and to a child one at a time; nobody holds the others up for long."""

    def __init__(self, at_once: int = CHUNKS_AT_ONCE, longest_s: float = LONGEST_TURN_S) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._of_child: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(1))
        self._longest_s = longest_s

    @asynccontextmanager
    async def one(self, child_id: str) -> AsyncIterator[None]:
        """A child's turn; it is over with the block, or when it has lasted too long.

        Of a child's many streams one has a turn and the others wait for it: it holds up itself.
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
        """A child's parts, each read and dealt with in a turn of its own."""
        while True:
            async with self.one(child_id):
                try:
                    part = await anext(parts)
                except StopAsyncIteration:
                    return
                yield part
                del part  # whoever has to wait for the next turn holds nothing meanwhile


def _once(*what: Callable[[], None]) -> Callable[[], None]:
    """Things that happen, one after the other, at the first call only."""
    left = [*what]

    def call() -> None:
        while left:
            left.pop()()

    return call
