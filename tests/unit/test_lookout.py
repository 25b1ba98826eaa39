"""Calls under way of who is revoked end soon, whatever they wait for, and nothing more is sent to them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from test_revoked import Listed
from test_trust_table import ALL

from fedstrata.errors import OutdatedError
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.trust.authority import Authority
from fedstrata.trust.lookout import Lookout
from fedstrata.trust.names import Name, Peer
from fedstrata.trust.outdated import Outdated

GPS = "/fedstrata.v1.GpsService/"
WATCH, RECORD = "/fedstrata.v1.RunService/WatchRun", "/fedstrata.v1.RunService/FetchRecord"
ASSIGNMENT = GPS + "FetchAssignment"
OPERATOR, DEVICE = Name("operator"), Name("device", "device-000")


@dataclass
class Holding(Listed):
    """A server that holds all calls: streams after a first reply, but for FetchRecord, which has no end."""

    is_held: asyncio.Event = field(default_factory=asyncio.Event)
    gone: list[str] = field(default_factory=list)

    def _handler(self, method: Any) -> Any:
        handler = super()._handler(method)
        reply = GetMessageClass(method.output_type)

        async def hold() -> None:
            self.is_held.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.gone.append(method.name)

        async def one(request: Any, context: Any) -> Any:
            await hold()

        async def several(request: Any, context: Any) -> AsyncIterator[Any]:
            yield reply()
            while method.name == "FetchRecord":
                yield reply()
            await hold()

        kind = next(
            kind for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream") if getattr(handler, kind)
        )
        return handler._replace(**{kind: several if method.server_streaming else one})


@pytest.fixture
async def holding(tmp_path: Path) -> AsyncIterator[Holding]:
    async with Holding(tmp_path, Authority.new("run-1"), ProcessMetrics("gps")) as server, asyncio.timeout(60):
        yield server


def begun(channel: grpc.aio.Channel, path: str, **fields: Any) -> Any:
    method = ALL[path]
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return make(path, request.SerializeToString, reply.FromString)(request(**fields))


async def read_to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
        pass


@pytest.mark.parametrize("path", [WATCH, RECORD])
async def test_a_revoked_operator_is_sent_nothing_more(holding: Holding, path: str) -> None:
    async with holding.channel_of(OPERATOR) as channel:
        call = begun(channel, path)
        await call.read()
        holding.revoke("operator")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_to_the_end(call)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert str(caught.value.details()).startswith("operator is revoked; ask who runs this")
    assert holding.refused() == 1
    assert holding.gone == ["WatchRun"][: path == WATCH]


async def test_a_call_that_is_held_ends_and_those_of_others_go_on(holding: Holding) -> None:
    async with holding.channel_of(DEVICE) as channel, holding.channel_of(Name("device", "device-001")) as other:
        held = begun(other, ASSIGNMENT, device_id="device-001")
        await holding.is_held.wait()
        holding.is_held.clear()
        call = begun(channel, ASSIGNMENT, device_id="device-000")
        await holding.is_held.wait()
        holding.revoke("device/device-000")
        with pytest.raises(grpc.aio.AioRpcError, match="device/device-000 is revoked"):
            await call
        assert holding.gone == ["FetchAssignment"]
        assert not held.done()
        held.cancel()


class Aging(Holding):
    """One whose callers' certificates run out when it says so."""

    now_s = 0.0

    def _outdated(self) -> Outdated | None:
        trusted = frozenset([(self.folder / "server" / "ca.pem").read_bytes()])
        return Outdated(lambda: trusted, clock=lambda: self.now_s)


async def test_who_has_a_certificate_that_has_run_out_is_sent_nothing_more_until_it_has_another(
    tmp_path: Path,
) -> None:
    async with Aging(tmp_path, Authority.new("run-1"), ProcessMetrics("gps")) as aging, asyncio.timeout(60):
        async with aging.channel_of(OPERATOR) as channel:
            call = begun(channel, RECORD)
            await call.read()
            aging.now_s = 1e11
            with pytest.raises(grpc.aio.AioRpcError, match="the certificate of operator has run out") as caught:
                await read_to_the_end(call)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_time_out_of_the_block_itself_stays_one() -> None:
    lookout = Lookout[Peer](lambda who: True, lambda who: None)
    with pytest.raises(TimeoutError, match="of its own"):
        async with lookout.over(Peer("run-1", (DEVICE,))):
            raise TimeoutError("of its own")


async def test_who_counts_again_meanwhile_may_try_again() -> None:
    lookout = Lookout[Peer](lambda who: False, lambda who: None, every_s=0.0)
    with pytest.raises(OutdatedError, match="did not count just now; try again"):
        async with lookout.over(Peer("run-1", (DEVICE,))):
            await asyncio.Event().wait()
