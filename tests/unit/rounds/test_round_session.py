"""A child's stream to its parent, over gRPC."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import ref

import grpc
import pytest

from fedstrata.rounds import ParentStream
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceServicer, LpsServiceStub, add_LpsServiceServicer_to_server
from tests.support.loop_time import LoopTime


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
async def session_with(parent: Any) -> AsyncIterator[ParentStream]:
    """A session over a channel of its own."""
    server = grpc.aio.server()
    add_LpsServiceServicer_to_server(parent, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        session = ParentStream(LpsServiceStub(channel).Attend)
        yield session
        session.close()
    await server.stop(0)


async def heard(session: ParentStream, timeout_s: float = 30) -> list[str | None]:
    asked = [pb.UpdatePart(fetch=pb.FetchModelRequest())]
    return [part.WhichOneof("part") async for part in session.exchange(asked, timeout_s)]


async def test_a_silent_parent_is_not_waited_for_longer_than_said_and_asked_anew_on_another_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent, clock = SilentParent(), LoopTime(monkeypatch)
    async with session_with(parent) as session:
        hearing = asyncio.ensure_future(heard(session, 20))
        await parent.hears.wait()  # else the second stream might be the first that it has
        await clock.advance(20)
        with pytest.raises(grpc.aio.AioRpcError, match="no answer within 20 s") as caught:
            await hearing
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await heard(session) == ["finished"]
    assert parent.streams == 2


async def test_a_parent_that_is_away_is_not_waited_for_longer_than_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        async with grpc.aio.insecure_channel(f"127.0.0.1:{taken.getsockname()[1]}") as channel:
            session = ParentStream(LpsServiceStub(channel).Attend)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await heard(session, 0.3)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


class Part:
    """Something that can be seen to be gone."""


class Call:
    """A stream as a session sees it; what is read comes when the test says so."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[pb.ModelPart] = asyncio.get_running_loop().create_future()
        self.is_cancelled = False
        self.part: ref[Part] | None = None
        self.has_written = asyncio.Event()

    def done(self) -> bool:
        return self.is_cancelled

    def cancel(self) -> None:
        self.is_cancelled = True

    async def write(self, part: Any) -> None:
        if isinstance(part, Part):
            self.part = ref(part)
        self.has_written.set()

    async def read(self) -> pb.ModelPart:
        return await self.answer


async def test_an_answer_that_comes_as_the_time_is_over_is_late_and_cancels_nobody() -> None:
    call = Call()
    session = ParentStream(lambda wait_for_ready: call)
    hearing = asyncio.ensure_future(heard(session, 0.01))
    await call.has_written.wait()
    loop = asyncio.get_running_loop()
    over = loop.time() + 0.02
    while loop.time() < over:
        pass  # as a process that stands still: both have come when it goes on, and the timer is heard last
    loop.call_soon(call.answer.set_result, pb.ModelPart(waiting=pb.Waiting()))
    with pytest.raises(grpc.aio.AioRpcError, match="no answer within"):
        await hearing
    assert call.is_cancelled


async def test_an_update_that_was_sent_is_not_held_while_the_next_model_is_awaited() -> None:
    call = Call()

    def parts() -> Iterator[Any]:
        yield Part()

    async def exchanged() -> list[pb.ModelPart]:
        return [part async for part in ParentStream(lambda wait_for_ready: call).exchange(parts(), 30)]

    hearing = asyncio.ensure_future(exchanged())
    await call.has_written.wait()
    assert call.part is not None
    assert call.part() is None
    call.answer.set_result(pb.ModelPart(waiting=pb.Waiting()))
    assert len(await hearing) == 1


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


class Breaking(Call):
    """A stream that breaks as its child ends it, since its parent stops at that moment."""

    async def done_writing(self) -> None:
        raise grpc.aio.InternalError('Failed "execute_batch"')


async def test_a_parent_that_stops_while_its_child_takes_leave_has_been_heard_all_the_same() -> None:
    call = Breaking()
    call.answer.set_result(pb.ModelPart(finished=pb.Finished()))
    assert await heard(ParentStream(lambda wait_for_ready: call)) == ["finished"]
