"""Waiting: for a time, for a condition, and between attempts. Also the process's own time.

In this library and in the three services, only this module sleeps.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

Result = TypeVar("Result")
_STARTED_AT = time.time() - time.monotonic()
TIMER_S = 0.001  # a timer may fire this much too early by the loop's clock
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
FEW_ENDS = 64  # callers in the heap of `Changes` that may have ended
AWAKE_S = 1.0  # longest single wait of `wait_awake`
PAUSED_S = 0.5  # a single wait that ends so late shows that the process was paused
# Connections break in a pause of ten seconds (`CHANNEL_OPTIONS`), which may seem to be `AWAKE_S` shorter. Then a child
# needs time for a try to connect, and for a pause before it.
BROKEN_AFTER_S, RECONNECT_S = 9.0, 4.0


def wall_time() -> float:
    """Return the time in seconds since 1970: the time at which the process started, plus the time that has passed since
    then. So a change of the machine's clock does not change durations.
    """
    return _STARTED_AT + time.monotonic()


def since_ns(unix_ns: int) -> int:
    """Return how many nanoseconds have passed since `unix_ns`, a time in nanoseconds since 1970; 0 for a future
    time.
    """
    return max(0, round(wall_time() * 1e9) - unix_ns)


def pass_time(seconds: float) -> None:
    """Block the present thread for some seconds, in code that cannot await."""
    time.sleep(seconds)


async def until_ns(at_ns: int, early_ns: int = 0) -> None:
    """Wait until a time of the monotonic clock. The event loop's timer may end up to a millisecond early. The timer is
    then set again.

    A timer may also end late. With `early_ns`, the timer is set this much earlier. For the rest of the time, this
    function checks the time in each turn of the event loop. This busy waiting uses the processor.
    """
    while (left_ns := at_ns - time.monotonic_ns()) > 0:  # noqa: ASYNC110  # a time has no event
        await asyncio.sleep(max(0, left_ns - early_ns) / 1e9)


class RealTime:
    """Use the machine's own time, in nanoseconds. Tests use a subclass with a time that they set."""

    def now_ns(self) -> int:
        """Return nanoseconds since some fixed time."""
        return time.monotonic_ns()

    async def until(self, at_ns: int, early_ns: int = 0) -> None:
        """Wait until `at_ns`, never less. The timer is set `early_ns` earlier, as `until_ns` explains."""
        await until_ns(at_ns, early_ns)

    def call_at(self, at_ns: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call a function at `at_ns`."""
        return asyncio.get_running_loop().call_later(max(0, at_ns - time.monotonic_ns()) / 1e9, call)


class Backoff:
    """Pause between attempts. Each pause is twice as long as the last pause, up to two seconds."""

    def __init__(self) -> None:
        self.attempts = 0

    async def pause(self) -> None:
        """Pause once. The next pause is twice as long, up to the limit."""
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self.attempts)
        self.attempts = min(self.attempts + 1, 16)
        await asyncio.sleep(pause_s)

    def reset(self) -> None:
        self.attempts = 0


async def wait_until(event: asyncio.Event, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
    """Wait until a condition holds, and return True. The condition is checked whenever the event is set. On time-out,
    return False.
    """
    if is_true():
        return True
    try:
        async with asyncio.timeout(timeout_s):
            while not is_true():
                await event.wait()
    except TimeoutError:
        return is_true()
    return True


async def wait_awake(wait: Callable[[float | None], Awaitable[bool]], timeout_s: float | None) -> bool:
    """Wait for at most `timeout_s` seconds in which this process runs. Return whether the condition of `wait` holds.

    `wait` waits for a condition, for at most the given seconds, and returns whether it holds. This function divides the
    time into short waits. If a short wait ends late, the process was paused or had no processor. So only the planned
    length of this wait is subtracted from the time.

    If the process was paused shortly before the time is over, the wait is made a few seconds longer, once. In these
    seconds, a parent receives the messages that children sent during the pause. So the parent does not treat these
    messages as late.
    """
    if timeout_s is None:
        return await wait(None)
    loop, left_s, may_extend = asyncio.get_running_loop(), timeout_s, True
    while True:
        planned_s = min(left_s, AWAKE_S)
        ends_at = loop.time() + planned_s
        if await wait(planned_s):
            return True
        left_s, late_s = left_s - planned_s, loop.time() - ends_at
        least_s = RECONNECT_S if late_s > BROKEN_AFTER_S else AWAKE_S if late_s > PAUSED_S else 0.0
        if left_s < least_s and may_extend:
            left_s, may_extend = least_s, False
        if left_s <= 0:
            return False


@dataclass(eq=False, slots=True)
class _Waiting:
    """Describe a caller that waits: its name, when its time is over, its condition, and the future that ends its
    wait.
    """

    name: str
    ends_at: float
    is_true: Callable[[], bool]
    over: asyncio.Future[bool]  # its result is whether the time is over

    def __lt__(self, other: "_Waiting") -> bool:
        return self.ends_at < other.ends_at

    def end(self, *, is_over: bool) -> None:
        if not self.over.done():  # it is done if the caller was cancelled
            self.over.set_result(is_over)

    def is_to_wake(self) -> bool:
        try:
            return self.over.done() or self.is_true()
        except Exception:  # the waiting caller checks its condition itself, and gets this exception there
            return True


class Changes:
    """Wake each waiting caller when its condition has become true. The time-outs of all callers share one timer.

    This object checks the conditions, because it would take longer to wake each caller for its own check. Callers may
    have names, so that their conditions are checked only when they may have changed.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[_Waiting, None]] = {}  # by name
        self._ends: list[_Waiting] = []  # a heap, sorted by the end of each caller's time; some no longer wait
        self._next: asyncio.Event | None = None
        self._told: dict[str, None] = {}  # names of the callers to check in the next turn of the event loop
        self._alarm = Alarm(self._time_out)

    @property
    def next(self) -> asyncio.Event:
        """The event that is set at the next call of `tell`."""
        if self._next is None:
            self._next = asyncio.Event()
        return self._next

    def tell(self, *, but: Collection[str] = ()) -> None:
        """Check the conditions in the next turn of the event loop, and wake the callers for which they hold. The
        conditions of the callers named in `but` have not changed.
        """
        self.tell_only(name for name in self._waiting if name not in but)

    def tell_only(self, names: Iterable[str]) -> None:
        """Like `tell`, but only the conditions of callers with these names may have changed."""
        is_told = bool(self._told)
        self._told.update(dict.fromkeys(names))
        if self._told and not is_told:
            asyncio.get_running_loop().call_soon(self._wake)
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None, *, name: str = "") -> bool:
        """Wait until a condition holds, and return True. On time-out, return False. `name` is the caller's name; many
        callers may have the same name.
        """
        loop, is_over = asyncio.get_running_loop(), False
        ends_at = math.inf if timeout_s is None else loop.time() + timeout_s
        while not is_true():
            if is_over or loop.time() >= ends_at:
                return False
            waiting = _Waiting(name, ends_at, is_true, loop.create_future())
            self._waiting.setdefault(name, {})[waiting] = None
            if timeout_s is not None:
                self._drop_ended()
                heappush(self._ends, waiting)
                self._alarm.ring_by(ends_at)
            try:
                is_over = await waiting.over
            finally:
                self._forget(waiting)
        return True

    async def wait_until_ns(self, at_ns: Callable[[], int | None]) -> None:
        """Wait until a time of the monotonic clock. The function `at_ns` returns this time, or None if the time is not
        known yet. The time may change at each call of `tell`.
        """

        def has_moved(from_ns: int | None) -> bool:
            return at_ns() != from_ns

        while (ends_ns := at_ns()) is None or ends_ns > time.monotonic_ns():
            left_s = None if ends_ns is None else max(0, ends_ns - time.monotonic_ns()) / 1e9
            await self.wait_until(partial(has_moved, ends_ns), left_s)

    async def wait_awake(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait like `wait_until`, but do not count time for which this process was paused."""
        return await wait_awake(partial(self.wait_until, is_true), timeout_s)

    def _wake(self) -> None:
        told, self._told = self._told, {}
        for name in told:
            for waiting in self._waiting.get(name, ()):
                if waiting.is_to_wake():
                    waiting.end(is_over=False)

    def _time_out(self, now: float) -> None:
        while self._ends and self._ends[0].ends_at <= now:
            heappop(self._ends).end(is_over=True)
        if self._ends:
            self._alarm.ring_by(self._ends[0].ends_at)

    def _forget(self, waiting: _Waiting) -> None:
        named = self._waiting[waiting.name]
        del named[waiting]
        if not named:
            del self._waiting[waiting.name]

    def _drop_ended(self) -> None:
        """If most callers in the heap no longer wait, take them out of the heap."""
        if len(self._ends) > FEW_ENDS + 2 * sum(map(len, self._waiting.values())):
            self._ends = [waiting for waiting in self._ends if not waiting.over.done()]
            heapify(self._ends)


class Alarm:
    """Use one timer for many requested times. The alarm calls a function at the earliest of these times, or slightly
    earlier.
    """

    def __init__(self, ring: Callable[[float], None]) -> None:
        """Set `ring`, the function that the alarm calls. Its argument is a time: all requested times up to this time
        have come. If later times were requested, the function must request them again.
        """
        self._ring = ring
        self._timer: asyncio.Handle | None = None
        self._rings_at = math.inf

    def ring_by(self, when: float) -> None:
        """Request that the alarm calls its function at `when`, a time of the running event loop, or earlier."""
        if when < self._rings_at:
            self.close()
            self._timer = asyncio.get_running_loop().call_at(when, self._fire)
            self._rings_at = when

    def close(self) -> None:
        """Cancel all requested times."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = None, math.inf

    def _fire(self) -> None:
        self._timer, self._rings_at = None, math.inf
        self._ring(asyncio.get_running_loop().time() + TIMER_S)


class TimeLimit:
    """Limit the time of several steps, one after another, like `asyncio.timeout` but with one timer.

    If a step ends in time, the timer is not cancelled. If the timer then fires too early for a later step, it is set
    again.
    """

    def __init__(self) -> None:
        self._alarm = Alarm(self._end)
        self._task: asyncio.Task[object] | None = None  # task of the running step
        self._ends_at = 0.0
        self._is_over = False

    async def hold(self, timeout_s: float, step: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of a step. If the step takes longer than `timeout_s`, cancel the step and raise
        TimeoutError.
        """
        task = asyncio.current_task()
        if task is None or self._task is not None:
            step.close()
            raise RuntimeError("TimeLimit.hold must run in a task, one step at a time")
        cancelling = task.cancelling()
        self._task, self._is_over = task, False
        self._ends_at = asyncio.get_running_loop().time() + timeout_s
        self._alarm.ring_by(self._ends_at)
        try:
            return await step
        except asyncio.CancelledError:
            if self._is_over and task.cancelling() - 1 <= cancelling:
                raise TimeoutError from None
            raise
        finally:
            self._task = None
            if self._is_over:
                task.uncancel()

    def close(self) -> None:
        """Cancel the timer, unless a running step still needs it."""
        if self._task is None:
            self._alarm.close()

    def _end(self, now: float) -> None:
        if self._task is None:
            return
        if now < self._ends_at:
            self._alarm.ring_by(self._ends_at)
            return
        self._is_over = True
        self._task.cancel()
