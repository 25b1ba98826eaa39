"""What peers may hold of a server: bytes sent ahead by the largest payload, connections, and how long in silence."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from subprocess import PIPE
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedstrata.errors import NotServedError
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rpc import server as server_module
from fedstrata.rpc.client import is_passing
from fedstrata.rpc.server import (
    HEADER_BYTES,
    LOOKAHEAD_BYTES,
    METADATA_BYTES,
    SPARE_STREAMS,
    STREAMS_OF_A_CHILD,
    RefusalLines,
    RpcServer,
    sent_ahead,
)
from fedstrata.rpc.waiting_line import AT_LEAST
from fedstrata.tensors import SMALL_BYTES
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceServicer, GpsServiceStub, add_GpsServiceServicer_to_server

AHEAD, ESTIMATE = "grpc.http2.lookahead_bytes", "grpc.http2.bdp_probe"


@asynccontextmanager
async def serving(gps: GpsServiceServicer | None = None, **given: Any) -> AsyncIterator[tuple[RpcServer, Any]]:
    """A server that is ready, perhaps with a GPS's calls, and a channel to it."""
    server = RpcServer(ProcessMetrics("gps").links, security=OPEN, **given)
    if gps is not None:
        server.add(add_GpsServiceServicer_to_server, gps, "fedstrata.v1.GpsService")
    await server.start("127.0.0.1:0")
    await server.set_ready()
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield server, channel
    await server.stop(0)


@pytest.mark.parametrize("payload_bytes", [100_000, SMALL_BYTES])
def test_a_small_payload_is_sent_ahead_whole(payload_bytes: int) -> None:
    options = dict(sent_ahead(payload_bytes))
    assert options[AHEAD] == payload_bytes + HEADER_BYTES
    assert ESTIMATE not in options


@pytest.mark.parametrize("payload_bytes", [0, SMALL_BYTES + 1, 100_000_000])
def test_of_a_large_one_or_one_not_known_little_is_whatever_the_link_would_carry(payload_bytes: int) -> None:
    assert dict(sent_ahead(payload_bytes)) == {AHEAD: LOOKAHEAD_BYTES, ESTIMATE: 0}


async def test_silent_connections_are_few_and_hung_up_on_and_who_speaks_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "connections_allowed", lambda: 5)
    monkeypatch.setattr(server_module, "GREETING_S", 0.5)
    async with serving() as (server, channel):
        host, port = server.address.split(":")
        with ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(20)]
            await asyncio.gather(*(asyncio.to_thread(until_hung_up_on, connection) for connection in silent))
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=60)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_connection_without_a_call_is_ended_and_opened_anew_for_the_next_and_one_with_a_call_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "IDLE_S", 0.2)
    ready, own = grpc.ChannelConnectivity.READY, (("grpc.use_local_subchannel_pool", 1),)
    async with (
        serving() as (server, _),
        grpc.aio.insecure_channel(server.address, options=own) as silent,
        grpc.aio.insecure_channel(server.address, options=own) as busy,
        asyncio.timeout(60),
    ):
        watch = health_pb2_grpc.HealthStub(busy).Watch(health_pb2.HealthCheckRequest())
        assert (await anext(aiter(watch))).status == health_pb2.HealthCheckResponse.SERVING
        silent.get_state(try_to_connect=True)
        await silent.channel_ready()
        await silent.wait_for_state_change(ready)
        assert busy.get_state() is ready
        for _ in range(2):
            await health_pb2_grpc.HealthStub(silent).Check(health_pb2.HealthCheckRequest())
            await silent.wait_for_state_change(ready)
        await server.set_ready(False)
        assert (await anext(aiter(watch))).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()


SERVES = """
import asyncio, sys
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rpc.server import RpcServer
from fedstrata.trust.security import OPEN

async def main():
    server = RpcServer(ProcessMetrics("gps").links, security=OPEN, children=3)
    await server.start("127.0.0.1:0")
    print(server.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)

asyncio.run(main())
"""


def test_of_a_flood_of_connections_few_wait_for_a_server_that_is_busy() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", SERVES], stdin=PIPE, stdout=PIPE, text=True) as server,
        ExitStack() as stack,
    ):
        assert server.stdout is not None
        host, port = server.stdout.readline().split(":")
        server.send_signal(signal.SIGSTOP)
        os.waitpid(server.pid, os.WUNTRACED)
        flood = [stack.enter_context(socket.socket()) for _ in range(500)]
        for connection in flood:
            connection.setblocking(False)
            connection.connect_ex((host, int(port)))
        waiting = sum(map(is_connected, flood))
        server.send_signal(signal.SIGCONT)
        # the kernel lets one more in
        assert 0 < waiting <= AT_LEAST + 3 + 1
        with grpc.insecure_channel(f"{host}:{int(port)}") as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
        server.communicate(timeout=60)


def is_connected(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("metadata_bytes", "is_let_in"), [(METADATA_BYTES // 2, True), (METADATA_BYTES + 500, False)])
async def test_a_call_brings_little_beside_its_messages(metadata_bytes: int, is_let_in: bool) -> None:
    async with serving() as (_, channel):
        check, metadata = health_pb2_grpc.HealthStub(channel).Check, (("x-much", "x" * metadata_bytes),)
        for _ in range(10):
            call = check(health_pb2.HealthCheckRequest(), metadata=metadata, timeout=60)
            code = await call.code()
            assert code is (grpc.StatusCode.OK if is_let_in else grpc.StatusCode.RESOURCE_EXHAUSTED)


class Holding(GpsServiceServicer):
    """A GPS that holds every question after assignments, and counts those that it holds."""

    def __init__(self, most: int) -> None:
        self.held, self.most = 0, most
        self.are_there, self.is_over = asyncio.Event(), asyncio.Event()

    async def FetchAssignment(self, request: pb.FetchAssignmentRequest, context: Any) -> pb.FetchAssignmentResponse:
        self.held += 1
        if self.held == self.most:
            self.are_there.set()
        await self.is_over.wait()
        return pb.FetchAssignmentResponse()


async def test_on_one_connection_calls_are_under_way_for_as_many_children_as_there_are() -> None:
    most = STREAMS_OF_A_CHILD * 3 + SPARE_STREAMS
    gps = Holding(most)
    async with serving(gps, children=3) as (server, channel):
        stub = GpsServiceStub(channel)
        calls = [stub.FetchAssignment(pb.FetchAssignmentRequest()) for _ in range(most + 5)]
        async with asyncio.timeout(30):
            await gps.are_there.wait()
        own = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(server.address, options=own) as other:  # who comes by another is heard
            await health_pb2_grpc.HealthStub(other).Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert gps.held == most
        gps.is_over.set()
        ended = await asyncio.gather(*calls, return_exceptions=True)
    # who comes while others are being ended may be told to try again, as every caller of ours does
    assert all(isinstance(end, grpc.aio.AioRpcError) and is_passing(end) for end in ended if isinstance(end, Exception))
    assert most <= sum(not isinstance(end, Exception) for end in ended) == gps.held


def until_hung_up_on(connection: socket.socket) -> None:
    """Listen to a peer until it ends the connection. Raises TimeoutError when it does not."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass


async def test_bytes_that_are_no_message_are_refused_in_one_line_where_nobody_has_a_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(GpsServiceServicer()) as (_, channel):
        for kind, method in (
            (channel.unary_unary, "/fedstrata.v1.GpsService/Enroll"),
            (channel.unary_stream, "/grpc.health.v1.Health/Watch"),
        ):
            call: Any = kind(method)(b"\xff\xff no message", timeout=20)
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [record.message for record in caplog.records] == ["call_refused"] * 2


def test_a_flood_of_refused_calls_leaves_room_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    lines = RefusalLines(lambda: now[0])
    assert sum(lines.has_room("Enroll", "NOT_FOUND") for _ in range(26_400)) == 30
    assert lines.has_room("Enroll", "DATA_LOSS")
    assert lines.has_room("FetchModel", "NOT_FOUND")
    assert [record.message for record in caplog.records] == ["refusals_not_logged"]
    now[0] = 60.0
    assert lines.has_room("Enroll", "NOT_FOUND")


class Elsewhere(GpsServiceServicer):
    """A parent whose children belong to another."""

    async def Enroll(self, request: Any, context: Any) -> Any:
        raise NotServedError("now belongs to another parent; call FetchAssignment")


async def test_a_child_that_is_sent_to_its_new_parent_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Elsewhere()) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError, match="now belongs to another parent"):
            await GpsServiceStub(channel).Enroll(pb.EnrollRequest(), timeout=20)
    assert caplog.records == []
