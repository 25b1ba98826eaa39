"""Waiting for what may change: whoever waits looks again, and is let go when its own time is over."""

import asyncio
from functools import partial

import pytest

from fedstrata.link import Changes


class Loop:
    """The running loop with a clock that the test sets ahead, and a count of its timers."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self._ahead_s, self.timers = 0.0, 0
        real_time, real_call_at = loop.time, loop.call_at

        def call_at(when: float, *rest: object, **named: object) -> asyncio.TimerHandle:
            self.timers += 1
            return real_call_at(when, *rest, **named)  # type: ignore[arg-type]

        patch.setattr(loop, "time", lambda: real_time() + self._ahead_s)
        patch.setattr(loop, "call_at", call_at)

    async def advance(self, seconds: float) -> None:
        self._ahead_s += seconds
        await turns()


async def turns() -> None:
    """Let everybody who can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_holds_already_is_not_waited_for() -> None:
    assert await Changes().wait_until(lambda: True, 0.0)
    assert not await Changes().wait_until(lambda: False, 0.0)


async def test_who_waits_looks_again_at_each_change() -> None:
    changes, state = Changes(), {"a": False, "b": False}
    waiting = {name: asyncio.ensure_future(changes.wait_until(lambda name=name: state[name], None)) for name in state}  # type: ignore[misc]
    await turns()
    state["a"] = True
    await turns()
    assert not waiting["a"].done()  # nobody told it
    changes.tell()
    await turns()
    assert (waiting["a"].done(), waiting["b"].done()) == (True, False)
    state["b"] = True
    changes.tell()
    assert await waiting["a"]
    assert await waiting["b"]


async def test_each_is_let_go_when_its_own_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, changes = Loop(monkeypatch), Changes()
    waiting = {s: asyncio.ensure_future(changes.wait_until(lambda: False, s)) for s in (20.0, 5.0, 30.0)}
    for now, left in ((4.0, {20.0, 5.0, 30.0}), (5.5, {20.0, 30.0}), (21.0, {30.0}), (31.0, set())):
        await turns()
        await loop.advance(now - loop._ahead_s)
        assert {s for s in waiting if not waiting[s].done()} == left
    assert [await waiting[s] for s in waiting] == [False] * 3


async def test_all_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, changes, rounds = Loop(monkeypatch), Changes(), [0]
    for number in range(1, 6):
        opened = partial(lambda number: rounds[-1] >= number, number)
        waiting = [asyncio.ensure_future(changes.wait_until(opened, 20.0)) for _ in range(50)]
        await turns()
        rounds.append(number)
        changes.tell()
        assert all(await asyncio.gather(*waiting))
    assert loop.timers == 1


async def test_one_that_is_given_up_leaves_the_others_waiting() -> None:
    changes, state = Changes(), {"done": False}
    waiting = [asyncio.ensure_future(changes.wait_until(lambda: state["done"], 20.0)) for _ in range(3)]
    await turns()
    waiting[0].cancel()
    await turns()
    state["done"] = True
    changes.tell()
    assert await asyncio.gather(*waiting[1:]) == [True, True]
    assert waiting[0].cancelled()
