"""Time on links: how long calls may take, how long a parent holds one back, and the pauses between attempts.

The only module that lets time pass on purpose.
"""

import asyncio
import math
import time
from collections.abc import Callable

UPGRADE_S = 180.0  # how long the pods of a release may differ in their experiment while it is upgraded
CALL_S = 30.0  # a call that carries little
HOLD_S = 20.0  # how long a parent holds a call back before it answers `waiting`
SLOWEST_BYTES_PER_S = 32_000.0  # the slowest link that a payload's deadline allows for
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


def payload_timeout_s(payload_bytes: int) -> float:
    """The deadline of a call that carries a payload, and may be held back before."""
    return CALL_S + HOLD_S + payload_bytes / SLOWEST_BYTES_PER_S


def pass_time(seconds: float) -> None:
    """Let time go by where there is no event loop yet."""
    time.sleep(seconds)


class Backoff:
    """Pauses between attempts: each twice the last, up to two seconds."""

    def __init__(self) -> None:
        self.attempts = 0

    async def pause(self) -> None:
        """Let one pause go by."""
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self.attempts)
        self.attempts = min(self.attempts + 1, 16)
        await asyncio.sleep(pause_s)

    def reset(self) -> None:
        self.attempts = 0


class Pace:
    """Lets bytes go by no faster than a rate, None being as fast as they come."""

    def __init__(self, bytes_per_s: float | None = None, latency_ms: float = 0.0) -> None:
        self.bytes_per_s = bytes_per_s
        self.latency_ms = latency_ms

    async def carry(self, size: int) -> None:
        """Let the time go by that so many bytes take."""
        seconds = self.latency_ms / 1000 + (size / self.bytes_per_s if self.bytes_per_s else 0.0)
        if seconds:
            await asyncio.sleep(seconds)


async def wait_until(event: Callable[[], asyncio.Event], is_true: Callable[[], bool], timeout_s: float | None) -> bool:
    """Wait until a condition holds, looking again whenever the (current) event is set; False on time-out."""
    if is_true():
        return True
    try:
        async with asyncio.timeout(timeout_s):
            while not is_true():
                await event().wait()
    except TimeoutError:
        return is_true()
    return True


class Changes:
    """Has those who wait for something look again whenever it may have come; their time-outs share one timer."""

    def __init__(self) -> None:
        self.next = asyncio.Event()  # what the next telling sets
        self._timer: asyncio.TimerHandle | None = None

    def tell(self) -> None:
        """Have everybody who waits look again."""
        now, self.next = self.next, asyncio.Event()
        now.set()

    async def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until a condition holds; False on time-out."""
        loop = asyncio.get_running_loop()
        ends_at = math.inf if timeout_s is None else loop.time() + timeout_s
        while not is_true():
            if loop.time() >= ends_at:
                return False
            if timeout_s is not None and (self._timer is None or ends_at < self._timer.when()):
                self._wake_at(ends_at)
            await self.next.wait()
        return True

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.tell()
