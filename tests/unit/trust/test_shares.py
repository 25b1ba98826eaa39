"""What one identity may have of a server at once: by hand, on a clock of the test's own, and over gRPC."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedstrata.errors import TooManyCallsError
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rpc.client import PASSING
from fedstrata.trust.authority import Authority
from fedstrata.trust.call_table import MOST_ASKED_BYTES
from fedstrata.trust.names import Name, Peer
from fedstrata.trust.rate_limits import IDENTITIES_REMEMBERED, READ_AT_ONCE, Shares
from fedstrata.v1 import gps_service_pb2 as pb
from tests.support.guarded_server import CALLERS, Served, called, said_by

CHECK = "/grpc.health.v1.Health/Check"


def peer(*names: Name) -> Peer:
    return Peer("run-1", names)


ONE, OTHER = peer(Name("device", "device-000")), peer(Name("device", "device-001"))
FIFTY = peer(Name("device", "device-000", "device-049"))


class Clock:
    """Seconds, as a test sets them."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shares(clock: Clock) -> Shares:
    return Shares(10, clock)


def begun(shares: Shares, who: Peer, clock: Clock, *, most: int = 100_000) -> int:
    """How many calls somebody may make one after the other, without any time going by."""
    for number in range(most):
        try:
            with shares.call(who):
                pass
        except TooManyCallsError:
            return number
    return most


@pytest.mark.parametrize(
    ("who", "most"),
    [
        (ONE, 40),
        (FIFTY, 432),  # as fifty processes with a device each, but for what is granted beside
        (peer(Name("device", "a"), Name("device", "b")), 48),
        (peer(Name("lps", "lps-0")), 112),  # ten clusters at most, in a run of ten devices
        (peer(Name("operator")), 160),
    ],
)
def test_so_many_calls_are_under_way_at_once_and_one_more_when_one_has_ended(
    shares: Shares, who: Peer, most: int
) -> None:
    with ExitStack() as calls:
        for _ in range(most - 1):
            calls.enter_context(shares.call(who))
        with (
            shares.call(who),
            pytest.raises(TooManyCallsError, match=f"has {most} open calls; {most} are allowed"),
        ):
            calls.enter_context(shares.call(who))
        calls.enter_context(shares.call(who))
        with shares.call(OTHER):
            pass


def test_a_burst_is_ten_seconds_worth_and_comes_back_with_time(shares: Shares, clock: Clock) -> None:
    assert begun(shares, ONE, clock) == 1000
    with (
        pytest.raises(TooManyCallsError, match="begins more than 100 calls per second; wait, and try again"),
        shares.call(ONE),
    ):
        pass
    clock.now += 0.5
    assert begun(shares, ONE, clock) == 50
    clock.now += 1000
    assert begun(shares, ONE, clock) == 1000


def test_who_floods_leaves_others_their_share_and_fifty_have_that_of_fifty(shares: Shares, clock: Clock) -> None:
    begun(shares, ONE, clock)
    assert begun(shares, OTHER, clock) == 1000
    assert begun(shares, FIFTY, clock) == 50_000


def test_a_flood_is_logged_once_a_minute(shares: Shares, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for seconds in (0, 1, 59, 61, 62):
        clock.now = float(seconds)
        begun(shares, ONE, clock)
    assert [record.message for record in caplog.records] == ["calls_limited"] * 2


def test_of_too_many_identities_those_are_forgotten_that_hold_nothing(shares: Shares, clock: Clock) -> None:
    with shares.call(ONE):
        for number in range(2 * IDENTITIES_REMEMBERED):
            assert begun(shares, peer(Name("device", f"board-{number}")), clock, most=1) == 1
        assert len(shares._shares) == IDENTITIES_REMEMBERED
        assert ONE in shares._shares


def test_who_is_refused_its_share_tries_again() -> None:
    assert grpc.StatusCode[TooManyCallsError.status] in PASSING


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with Served(tmp_path, Authority.new("run-1"), ProcessMetrics("gps")) as server:
        yield server


async def watched(channel: grpc.aio.Channel) -> str:
    """How a watch of health ends, which goes on for as long as it is let."""
    request = health_pb2.HealthCheckRequest()
    try:
        async for _ in health_pb2_grpc.HealthStub(channel).Watch(request):
            pass
    except grpc.aio.AioRpcError as error:
        return str(error.details())
    return "ended"


async def test_a_flood_over_grpc_is_refused_and_counted_and_others_are_answered(served: Served) -> None:
    flooder, honest = CALLERS["the device"][0], CALLERS["another device for it"][0]
    async with served.channel_of(flooder) as channel, served.channel_of(honest) as other:
        calls = [asyncio.ensure_future(watched(channel)) for _ in range(60)]
        for refused in islice(asyncio.as_completed(calls), 20):
            assert "device/device-000 has 40 open calls" in await refused
        assert await called(other, CHECK, said_by(CHECK, "")) == "OK"
        assert sum(call.done() for call in calls) == 20
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert served.metrics.registry.get_sample_value("fedstrata_refused_total", {"reason": "share"}) == 20


class Counted:
    """A deserialiser's messages that are held at once, at most."""

    def __init__(self, parse: Any) -> None:
        self.parse, self.held, self.most = parse, 0, 0

    def __call__(self, data: bytes) -> Any:
        self.held += 1
        self.most = max(self.most, self.held)
        return Held(self, self.parse(data))


class Held:
    """A message that says when it is let go."""

    def __init__(self, counted: Counted, message: Any) -> None:
        self._counted, self._message = counted, message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def __del__(self) -> None:
        self._counted.held -= 1


class Counting(Served):
    """A server that counts the messages of Enroll that it holds."""

    def _handler(self, method: Any) -> Any:
        handler = super()._handler(method)
        if method.name != "Enroll":
            return handler
        self.counted = Counted(handler.request_deserializer)
        return handler._replace(request_deserializer=self.counted)


async def enrolled(channel: grpc.aio.Channel, message: bytes) -> grpc.StatusCode:
    try:
        await channel.unary_unary("/fedstrata.v1.GpsService/Enroll")(message, timeout=60)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_of_many_calls_few_messages_are_held_at_once_and_none_while_its_refusal_is_on_its_way(
    tmp_path: Path,
) -> None:
    name = CALLERS["the device"][0]
    message = pb.EnrollRequest(device_id="x" * 60_000).SerializeToString()  # in another's name
    async with (
        Counting(tmp_path, Authority.new("run-1"), ProcessMetrics("gps")) as served,
        served.channel_of(name) as channel,
    ):
        codes = await asyncio.gather(*(enrolled(channel, message) for _ in range(40)))
        assert served.counted.most <= READ_AT_ONCE
        assert set(codes) == {grpc.StatusCode.PERMISSION_DENIED}
        assert served.counted.held == 0


async def test_a_call_that_only_asks_is_of_little(served: Served) -> None:
    message = pb.EnrollRequest(device_id="device-000", process_id="x" * MOST_ASKED_BYTES).SerializeToString()
    async with served.channel_of(CALLERS["the device"][0]) as channel:
        assert await enrolled(channel, message) is grpc.StatusCode.INVALID_ARGUMENT
    assert not served.heard


async def test_a_call_that_says_nothing_is_given_up_and_may_be_made_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstrata.trust.rate_limits.FIRST_MESSAGE_S", 0.2)
    async with served.channel_of(CALLERS["the device"][0]) as channel, asyncio.timeout(60):
        calls: Any = [channel.stream_stream("/fedstrata.v1.LpsService/Attend")() for _ in range(READ_AT_ONCE + 1)]
        for call in calls:
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "sent no message for 0.2 s; try again" in await call.details()
