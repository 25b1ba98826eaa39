"""The event loop's time as a test sets it: a deadline passes when the test says so, however busy the machine."""

import asyncio

import pytest

from fedstrata.process.waiting import AWAKE_S


class Ahead:
    """How far a test has set the clock of the running loop ahead."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    async def advance(self, seconds: float) -> None:
        """Let time pass, in steps so short that nobody takes them for a pause of the process."""
        ends_s = self.ahead_s + seconds
        while self.ahead_s < ends_s:
            self.ahead_s = min(self.ahead_s + AWAKE_S, ends_s)
            await turns()


class LoopTime(Ahead):
    """The running loop with a clock that stands still unless the test sets it ahead, and a count of its timers."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.timers = 0
        began, real_call_at = loop.time(), loop.call_at

        def call_at(when: float, *rest: object, **named: object) -> asyncio.TimerHandle:
            self.timers += 1
            return real_call_at(when, *rest, **named)  # type: ignore[arg-type]

        patch.setattr(loop, "time", lambda: began + self.ahead_s)
        patch.setattr(loop, "call_at", call_at)


async def turns() -> None:
    """Let everybody who can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)
