"""The devices for which an LPS waits unusually long. The LPS reports them to the GPS, which informs the operator."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from fedstrata.errors import FedstrataError
from fedstrata.process.waiting import Changes
from fedstrata.v1 import gps_service_pb2 as pb
from lps.kept.model_search import Handler

LOOK_S = 1.0
PATIENCE_S = 5.0  # the patience in the first round, and the least in others
PATIENCE_ROUNDS = 2.0  # the patience in other rounds, as a multiple of the previous round
NAMES_MAX = 50  # missing devices that are reported per cluster


@dataclass(frozen=True)
class _Opened:
    """Hold a cluster's open round, the time at which the round was first seen, and how long the previous round took."""

    number: int
    at: float
    before_s: float

    @property
    def patience_s(self) -> float:
        return max(PATIENCE_S, PATIENCE_ROUNDS * self.before_s)


class Waits:
    """Find the devices for which the rounds of clusters wait unusually long, and report these devices to the GPS."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        advice_on: Callable[[str], str],
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Set `handlers`, the objects that answer devices' calls, by cluster. `advice_on` returns why a device is
        refused, or an empty text. `clock` returns seconds.
        """
        self._handlers = handlers
        self._advice_on = advice_on
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._opened: dict[str, _Opened] = {}
        self._said: list[tuple[str, str]] = []

    def now(self) -> list[pb.Wait]:
        """Return the devices for which the open rounds have waited longer than usual."""
        waits = []
        for home_id, handler in self._handlers.items():
            number, missing, lacks = handler.awaited
            opened, now = self._note(home_id, number), self._clock()
            if now - opened.at < opened.patience_s:
                continue
            what = f"{lacks} of round {number + 1} of {home_id}" if number >= 0 else f"to come back to {home_id}"
            seconds = now - opened.at
            for name in missing[:NAMES_MAX]:
                whole = "; ".join(filter(None, (what, self._advice_on(name))))
                waits.append(pb.Wait(name=name, what=whole, seconds=seconds))
        return waits

    def _note(self, home_id: str, number: int) -> _Opened:
        known, now = self._opened.get(home_id), self._clock()
        if known is None or known.number != number:
            known = _Opened(number, now, 0.0 if known is None else now - known.at)
            self._opened[home_id] = known
        return known

    async def tell(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Check the rounds at intervals, until cancelled. Whenever the list of slow devices has changed, call `ask`,
        which reports these devices to the GPS.
        """
        while True:
            await Changes().wait_until(lambda: False, LOOK_S)
            waited = [(wait.name, wait.what) for wait in self.now()]
            if waited != self._said:
                with suppress(FedstrataError):  # the call that this LPS always has open shows the error
                    await ask()
                    self._said = waited
