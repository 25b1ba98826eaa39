"""Who serves a device: its LPS, until that is silent and the GPS names another."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from fedstrata.errors import ParentAwayError
from fedstrata.process.sleeping import Backoff
from fedstrata.v1 import gps_service_pb2 as gps_pb

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Served:
    """By which LPS a device is served, and how to find out whether it still is."""

    by: gps_pb.FetchAssignmentResponse
    ask: Callable[[], Awaitable[gps_pb.FetchAssignmentResponse]]
    silence_s: float | None  # how long an LPS may be silent before the GPS is asked; None: as long as it takes
    backoff: Backoff

    async def hear(self, exchange: Coroutine[Any, Any, Answer]) -> Answer:
        """What an exchange with the LPS ends with. Raises ParentAwayError when it is silent and another serves now."""
        hearing = asyncio.ensure_future(exchange)
        try:
            while not (await asyncio.wait({hearing}, timeout=self.silence_s))[0]:
                now = await self._asked_beside(hearing)
                if now is not None and (now.lps_id, now.lps_address) != (self.by.lps_id, self.by.lps_address):
                    raise ParentAwayError(f"{self.by.lps_id} is silent, and {now.lps_id} serves {now.cluster_id} now")
            answer = hearing.result()
            self.backoff.reset()
            return answer
        finally:
            hearing.cancel()

    async def _asked_beside(self, hearing: "asyncio.Future[Any]") -> gps_pb.FetchAssignmentResponse | None:
        """What the GPS says; None when the LPS answers first, as it may while the GPS itself is away."""
        asking = asyncio.ensure_future(self.ask())
        try:
            await asyncio.wait({hearing, asking}, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            asking.cancel()
