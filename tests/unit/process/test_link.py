"""Waiting for what may change: whoever waits looks again, and is let go when its own time is over."""

import asyncio
from functools import partial

import pytest
import uvloop

from fedstrata.process.waiting import Changes, TimeLimit
from tests.support.loop_time import LoopTime, turns


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


async def test_who_waits_for_something_else_is_not_woken_at_a_change() -> None:
    changes, state, woken = Changes(), {"a": False}, []

    async def wait(name: str) -> None:
        await changes.wait_until(lambda: woken.append(name) or state.get(name, False), None)  # type: ignore[func-returns-value]

    waiting = [asyncio.ensure_future(wait(name)) for name in ("a", "b")]
    await turns()
    state["a"] = True
    for _ in range(3):
        changes.tell()  # three in a turn are one
    await turns()
    assert (waiting[0].done(), waiting[1].done()) == (True, False)
    assert woken == ["a", "b", "a", "b", "a"]  # at first, at the change, and the one that is woken
    waiting[1].cancel()


async def test_a_condition_that_fails_fails_who_waits_for_it() -> None:
    changes, state = Changes(), {"done": 1}
    waiting = asyncio.ensure_future(changes.wait_until(lambda: 1 / state["done"] > 1, None))
    await turns()
    state["done"] = 0
    changes.tell()
    with pytest.raises(ZeroDivisionError):
        await waiting


async def test_each_is_let_go_when_its_own_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, changes = LoopTime(monkeypatch), Changes()
    waiting = {s: asyncio.ensure_future(changes.wait_until(lambda: False, s)) for s in (20.0, 5.0, 30.0)}
    for now, left in ((4.0, {20.0, 5.0, 30.0}), (5.5, {20.0, 30.0}), (21.0, {30.0}), (31.0, set())):
        await turns()
        await loop.advance(now - loop.ahead_s)
        assert {s for s in waiting if not waiting[s].done()} == left
    assert [await waiting[s] for s in waiting] == [False] * 3


async def test_all_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, changes, rounds = LoopTime(monkeypatch), Changes(), [0]
    for number in range(1, 6):
        opened = partial(lambda number: rounds[-1] >= number, number)
        waiting = [asyncio.ensure_future(changes.wait_until(opened, 20.0)) for _ in range(50)]
        await turns()
        rounds.append(number)
        changes.tell()
        assert all(await asyncio.gather(*waiting))
    assert loop.timers == 1


async def test_whose_time_is_over_does_not_wake_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, changes, looked = LoopTime(monkeypatch), Changes(), 0

    def look() -> bool:
        nonlocal looked
        looked += 1
        return False

    watched = changes.next
    waiting = [asyncio.ensure_future(changes.wait_until(look, 20.0 + number)) for number in range(50)]
    await turns()
    for number in range(50):
        await loop.advance(20.5 + number - loop.ahead_s)
        assert sum(one.done() for one in waiting) == number + 1
    assert looked == 2 * 50
    assert not watched.is_set()


def test_on_the_event_loop_of_services_time_outs_of_any_length_end() -> None:
    async def wait() -> list[bool]:
        changes, limit = Changes(), TimeLimit()
        with pytest.raises(TimeoutError):
            await limit.hold(0.0503, asyncio.Event().wait())
        assert await limit.hold(0.0503, asyncio.sleep(0, "in time")) == "in time"
        timeouts = (0.0503, 0.0504, 0.1002, 0.0001)  # a timer of that loop has whole milliseconds
        return await asyncio.gather(*(changes.wait_until(lambda: False, timeout_s) for timeout_s in timeouts))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(wait()) == [False] * 4


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


async def test_steps_that_are_over_in_time_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, limit = LoopTime(monkeypatch), TimeLimit()
    for number in range(5):
        assert await limit.hold(20.0, asyncio.sleep(0, number)) == number
        await loop.advance(3.0)
    assert loop.timers == 1
    limit.close()


async def test_a_step_has_its_own_time_whatever_is_left_of_the_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, limit = LoopTime(monkeypatch), TimeLimit()
    await limit.hold(20.0, asyncio.sleep(0))
    await loop.advance(15.0)
    held = asyncio.Event()
    holding = asyncio.ensure_future(limit.hold(20.0, held.wait()))
    await turns()
    await loop.advance(6.0)  # the first step's timer fires
    assert not holding.done()
    await loop.advance(15.0)
    with pytest.raises(TimeoutError):
        await holding
    assert await limit.hold(20.0, asyncio.sleep(0, "next")) == "next"
    limit.close()


async def test_a_shorter_limit_than_the_one_before_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, limit = LoopTime(monkeypatch), TimeLimit()
    await limit.hold(20.0, asyncio.sleep(0))
    holding = asyncio.ensure_future(limit.hold(5.0, asyncio.Event().wait()))
    await turns()
    await loop.advance(6.0)
    with pytest.raises(TimeoutError):
        await holding
    assert loop.timers == 2


async def test_who_is_cancelled_from_outside_is_cancelled_and_not_late() -> None:
    limit = TimeLimit()
    holding = asyncio.ensure_future(limit.hold(20.0, asyncio.Event().wait()))
    await turns()
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    limit.close()


async def test_who_is_cancelled_from_outside_as_the_time_is_over_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, limit = LoopTime(monkeypatch), TimeLimit()
    holding = asyncio.ensure_future(limit.hold(5.0, asyncio.Event().wait()))
    await turns()
    holding.cancel()
    loop.ahead_s = 6.0
    limit._alarm._fire()  # before it has heard of that
    assert holding.cancelling() == 2
    with pytest.raises(asyncio.CancelledError):
        await holding
    limit.close()


async def test_a_late_step_leaves_its_task_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, limit, cancelling = LoopTime(monkeypatch), TimeLimit(), -1

    async def late() -> str:
        nonlocal cancelling
        with pytest.raises(TimeoutError):
            await limit.hold(5.0, asyncio.Event().wait())
        cancelling = asyncio.current_task().cancelling()  # type: ignore[union-attr]
        await asyncio.sleep(0)
        return "went on"

    task = asyncio.ensure_future(late())
    await turns()
    await loop.advance(6.0)
    assert await task == "went on"
    assert cancelling == 0


async def test_a_step_that_is_under_way_keeps_its_limit_whoever_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, limit = LoopTime(monkeypatch), TimeLimit()
    holding = asyncio.ensure_future(limit.hold(5.0, asyncio.Event().wait()))
    await turns()
    limit.close()
    await loop.advance(6.0)
    with pytest.raises(TimeoutError):
        await holding


async def test_only_callers_whose_conditions_may_have_changed_are_checked() -> None:
    changes, looked = Changes(), []

    def wait(name: str) -> asyncio.Future[bool]:
        return asyncio.ensure_future(changes.wait_until(lambda: bool(looked.append(name)), None, name=name))

    waiting = [wait(name) for name in ("", "a", "a", "b")]
    await turns()
    for tell, checked in (
        (lambda: changes.tell_only(["a", "c"]), ["a", "a"]),
        (lambda: changes.tell(but={"a"}), ["", "b"]),
        (changes.tell, ["", "a", "a", "b"]),
    ):
        looked.clear()
        tell()
        await turns()
        assert looked == checked
    for one in waiting:
        one.cancel()
