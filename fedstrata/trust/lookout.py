"""Ends calls under way of who counts no more: a held call, or one that waits to send, says nothing of itself by which
it could be refused.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from fedstrata.errors import OutdatedError

LOOK_S = 2.0
Who = TypeVar("Who")


class Lookout(Generic[Who]):
    """Looks every now and then at those whose calls are under way; at nobody while there are none."""

    def __init__(self, counts: Callable[[Who], bool], check: Callable[[Who], None], every_s: float = LOOK_S) -> None:
        """`counts` says whether somebody's calls may go on, and `check` raises why not."""
        self._counts = counts
        self._check = check
        self._every_s = every_s
        self._under_way: dict[asyncio.Timeout, Who] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def over(self, who: Who) -> AsyncIterator[None]:
        """Give a block up wherever it waits, once the call may not go on.

        Raises:
            FedstrataError: what `check` raises; OutdatedError where it would go on again.
        """
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._under_way[limit] = who
                self._look_later()
                try:
                    yield
                finally:
                    del self._under_way[limit]
        except TimeoutError:
            if not limit.expired():
                raise
            self._check(who)
            raise OutdatedError("the certificate of this call did not count just now; try again") from None

    def _look_later(self) -> None:
        if self._timer is None and self._under_way:
            self._timer = asyncio.get_running_loop().call_later(self._every_s, self._look)

    def _look(self) -> None:
        self._timer = None
        counts = {who: self._counts(who) for who in set(self._under_way.values())}
        for limit, who in self._under_way.items():
            if not counts[who] and not limit.expired():
                limit.reschedule(0.0)
        self._look_later()
