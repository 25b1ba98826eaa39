"""A message that is larger than the other side takes is said once, and not sent for ever."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedstrata.errors import FedstrataError
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkMeter
from fedstrata.rpc.client import call_until_answered, is_passing
from fedstrata.rpc.server import RpcServer
from fedstrata.trust.security import OPEN


async def test_a_message_that_is_too_large_is_refused_and_not_tried_again() -> None:
    server = RpcServer(LinkMeter(), security=OPEN)
    await server.start("127.0.0.1:0")
    tries = 0
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def call() -> object:
            nonlocal tries
            tries += 1
            return stub.Check(health_pb2.HealthCheckRequest(service="x" * (4 << 20)), timeout=20)

        with pytest.raises(FedstrataError, match="larger than max"):
            await call_until_answered(call, EventLog("test"), "Check")
        assert tries == 1
    await server.stop()


def test_a_parent_that_has_no_room_for_now_is_asked_again() -> None:
    busy = grpc.aio.AioRpcError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), grpc.aio.Metadata(), "too many calls"
    )
    assert is_passing(busy)
