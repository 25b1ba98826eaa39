"""A device whose LPS says nothing: it asks the GPS who serves it, and leaves only for another."""

import asyncio
from collections.abc import Sequence

import pytest

from device.rounds import Served
from fedstrata.errors import ParentAwayError
from fedstrata.process.waiting import Backoff
from fedstrata.v1 import gps_service_pb2 as gps_pb

SOON_S = 0.001


def assignment(number: int) -> gps_pb.FetchAssignmentResponse:
    return gps_pb.FetchAssignmentResponse(home_id="lps-0", lps_id=f"lps-{number}", lps_address=f"10.0.0.{number}:50052")


class RoundTerms:
    """An exchange that ends when the test, or the GPS's last answer, lets it."""

    def __init__(self, answers: Sequence[int] = ()) -> None:
        self._answers = list(answers)
        self.may_end = asyncio.Event()
        self.asked = 0
        self.was_cancelled = False

    async def run(self) -> str:
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return "a model"

    async def ask(self) -> gps_pb.FetchAssignmentResponse:
        self.asked += 1
        answer = assignment(self._answers.pop(0))
        if not self._answers:
            self.may_end.set()
        return answer


def served(exchange: RoundTerms, silence_s: float | None) -> Served:
    return Served(assignment(0), exchange.ask, silence_s, Backoff())


async def test_an_lps_that_is_slow_and_still_the_one_is_waited_for() -> None:
    exchange = RoundTerms([0, 0, 0])
    assert await served(exchange, SOON_S).hear(exchange.run()) == "a model"
    assert exchange.asked == 3


async def test_a_silent_lps_is_left_when_another_serves_the_cluster() -> None:
    exchange = RoundTerms([0, 1, 1])
    with pytest.raises(ParentAwayError, match="lps-0 does not answer, and lps-1 serves lps-0 now"):
        await served(exchange, SOON_S).hear(exchange.run())
    await asyncio.sleep(0)
    assert exchange.was_cancelled


async def test_an_lps_that_answers_is_heard_while_the_gps_is_away() -> None:
    exchange = RoundTerms()

    async def ask_in_vain() -> gps_pb.FetchAssignmentResponse:
        exchange.may_end.set()
        await asyncio.Event().wait()
        raise AssertionError

    device = Served(assignment(0), ask_in_vain, SOON_S, Backoff())
    async with asyncio.timeout(60):
        assert await device.hear(exchange.run()) == "a model"


async def test_without_deadlines_the_gps_is_never_asked() -> None:
    exchange = RoundTerms()
    exchange.may_end.set()
    assert await served(exchange, None).hear(exchange.run()) == "a model"
    assert exchange.asked == 0


async def test_an_answer_ends_the_pauses_and_an_error_does_not() -> None:
    exchange, backoff = RoundTerms(), Backoff()
    backoff.attempts = 3
    device = Served(assignment(0), exchange.ask, 60, backoff)

    async def refused() -> str:
        raise ParentAwayError("gone")

    with pytest.raises(ParentAwayError, match="gone"):
        await device.hear(refused())
    assert backoff.attempts == 3
    exchange.may_end.set()
    await device.hear(exchange.run())
    assert backoff.attempts == 0
