"""Calls that stream messages up, where gRPC cancels them by itself."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from fedstrata.process.metrics import LinkMeter
from fedstrata.rpc.client import Connection, is_passing
from fedstrata.rpc.streamed import streamed
from fedstrata.trust.security import OPEN
from fedstrata.v1 import answers_pb2
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceServicer, GpsServiceStub, add_GpsServiceServicer_to_server


async def cancelled(messages: Iterator[Any]) -> None:
    """What grpc.aio does when it cannot write any more."""
    raise asyncio.CancelledError


async def endless(messages: Iterator[Any]) -> None:
    await asyncio.Event().wait()


async def test_a_call_that_grpc_cancels_can_be_made_again() -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await streamed(cancelled)([])
    assert is_passing(caught.value)


async def test_a_call_that_its_caller_cancels_is_cancelled() -> None:
    task = asyncio.create_task(streamed(endless)([]))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Patient(GpsServiceServicer):
    """Takes what comes, and answers when there is no more."""

    async def SubmitAnswer(self, requests: AsyncIterator[Any], context: Any) -> answers_pb2.SubmitAnswerResponse:
        async for _ in requests:
            pass
        return answers_pb2.SubmitAnswerResponse()


def now() -> Iterator[answers_pb2.AnswerPart]:
    yield answers_pb2.AnswerPart()
    raise KeyError("the data is gone")


async def later() -> AsyncIterator[answers_pb2.AnswerPart]:
    for message in now():
        yield message


@pytest.mark.parametrize("messages", [now, later])
async def test_what_an_iterator_raises_reaches_who_awaits_the_call(messages: Any) -> None:
    server = grpc.aio.server()
    add_GpsServiceServicer_to_server(Patient(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    connection = Connection(f"127.0.0.1:{port}", OPEN)
    counted = connection.counted(LinkMeter())
    with pytest.raises(KeyError, match="the data is gone"):
        await GpsServiceStub(counted).SubmitAnswer(messages(), timeout=60)
    await connection.close()
    await server.stop(0)
