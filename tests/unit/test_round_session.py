"""A child's stream to its parent, over gRPC."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from fedstrata.rounds import Session
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceServicer, LpsServiceStub, add_LpsServiceServicer_to_server


class Parent(LpsServiceServicer):  # type: ignore[misc]  # the generated base class is untyped
    """A run that is over; counts the streams that came to their end."""

    def __init__(self) -> None:
        self.heard_out = 0

    async def Attend(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> AsyncIterator[pb.ModelPart]:
        async for _ in requests:
            yield pb.ModelPart(finished=pb.Finished())
        self.heard_out += 1


class SilentParent(LpsServiceServicer):  # type: ignore[misc]  # the generated base class is untyped
    """Hears and says nothing, on its first stream; tells who comes again that the run is over."""

    def __init__(self) -> None:
        self.streams = 0
        self.hears = asyncio.Event()

    async def Attend(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> AsyncIterator[pb.ModelPart]:
        self.streams += 1
        is_first = self.streams == 1
        async for _ in requests:
            self.hears.set()
            if not is_first:
                yield pb.ModelPart(finished=pb.Finished())


@asynccontextmanager
async def session_with(parent: Any) -> AsyncIterator[Session]:
    """A session over a channel of its own."""
    server = grpc.aio.server()
    add_LpsServiceServicer_to_server(parent, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        session = Session(LpsServiceStub(channel).Attend)
        yield session
        session.close()
    await server.stop(0)


async def heard(session: Session, timeout_s: float = 30) -> list[str | None]:
    return [part.WhichOneof("part") async for part in session.fetch(pb.FetchModelRequest(), timeout=timeout_s)]


async def test_a_silent_parent_is_not_waited_for_longer_than_said_and_asked_anew_on_another_stream() -> None:
    parent = SilentParent()
    async with session_with(parent) as session:
        with pytest.raises(grpc.aio.AioRpcError, match=r"no answer within 0\.3 s") as caught:
            await heard(session, 0.3)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await heard(session) == ["finished"]
    assert parent.streams == 2


async def test_who_is_cancelled_while_the_parent_is_silent_is_cancelled() -> None:
    parent = SilentParent()
    async with session_with(parent) as session:
        hearing = asyncio.ensure_future(heard(session))
        await parent.hears.wait()
        hearing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hearing


async def test_a_child_that_hears_the_end_lets_its_parent_end_the_stream() -> None:
    parent = Parent()
    async with session_with(parent) as session:
        assert await heard(session) == ["finished"]
        assert parent.heard_out == 1
