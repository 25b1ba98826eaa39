"""A wait with a deadline does not count the time for which its process was paused."""

import asyncio

import pytest

from fedstrata.process.waiting import AWAKE_S, RECONNECT_S, Changes, wait_awake


class Waits:
    """Notes how long each wait was asked for; the condition holds at the wait with number `holds_at`."""

    def __init__(self, holds_at: int = -1) -> None:
        self.asked: list[float | None] = []
        self._holds_at = holds_at

    async def __call__(self, seconds: float | None) -> bool:
        self.asked.append(seconds)
        return len(self.asked) - 1 == self._holds_at


@pytest.mark.parametrize(("timeout_s", "asked"), [(0.3, [0.3]), (1.0, [1.0]), (2.5, [1.0, 1.0, 0.5]), (0.0, [0.0])])
async def test_a_wait_is_as_long_as_was_asked_for(timeout_s: float, asked: list[float]) -> None:
    waits = Waits()
    assert not await wait_awake(waits, timeout_s)
    assert waits.asked == asked


async def test_it_ends_when_the_condition_holds_and_may_have_no_end() -> None:
    waits = Waits(holds_at=1)
    assert await wait_awake(waits, 60)
    assert waits.asked == [1.0, 1.0]
    forever = Waits(holds_at=0)
    assert await wait_awake(forever, None)
    assert forever.asked == [None]


async def test_a_pause_counts_as_one_short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    real, ahead_s = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + ahead_s[0])
    short: list[float] = []

    async def wait(seconds: float | None) -> bool:
        assert seconds is not None
        short.append(seconds)
        ahead_s[0] += 100  # the process is paused in each wait
        return await Changes().wait_until(lambda: False, seconds)

    began = loop.time()
    assert not await wait_awake(wait, 3 * AWAKE_S)
    assert short == [AWAKE_S] * 5  # the first shows a pause in which connections break: time to connect is added once
    assert loop.time() - began > 500


@pytest.mark.parametrize(("paused_s", "more_s"), [(0.1, 0.0), (5.0, AWAKE_S), (60.0, RECONNECT_S)])
async def test_after_a_pause_at_the_end_there_is_time_once_for_what_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch, paused_s: float, more_s: float
) -> None:
    loop = asyncio.get_running_loop()
    ahead_s = [0.0]
    monkeypatch.setattr(loop, "time", lambda: ahead_s[0])
    short: list[float] = []

    async def wait(seconds: float | None) -> bool:
        assert seconds is not None
        short.append(seconds)
        ahead_s[0] += seconds + (paused_s if len(short) == 1 else 0)
        return False

    assert not await wait_awake(wait, 0.5)
    assert sum(short) == 0.5 + more_s
