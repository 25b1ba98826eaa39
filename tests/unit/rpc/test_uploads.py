"""An upload that stalls, or drips, is given up by the time for which it was waited for, and goes on where it stands."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedstrata.errors import StalledError
from fedstrata.experiment_file import parse_experiment
from fedstrata.links.tier_links import upload_wait
from fedstrata.process.metrics import LinkMeter
from fedstrata.process.time_limits import payload_timeout_s
from fedstrata.rounds import RoundServer
from fedstrata.rounds.parent.child_calls import ChildStream
from fedstrata.rpc.client import is_passing
from fedstrata.rpc.server import ERROR_KEY, RpcServer
from fedstrata.rpc.upload_limit import UPLOAD_WAIT, Awaited, UploadWait
from fedstrata.tensors import CHUNK_BYTES
from fedstrata.trust.security import OPEN
from fedstrata.v1 import answers_pb2, tensors_pb2
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub, add_LpsServiceServicer_to_server
from lps.servicer import LpsServicer
from tests.support.rounds_setting import RUN_ID, bytes_of, header_of, server_of, vector

SHORT = UploadWait(first_s=0.5)
UPDATE = bytes_of(vector(1.0, 2.0))
HALF = len(UPDATE) // 2


class Time:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, **bounds: float) -> UploadWait:
        return UploadWait(clock=self, **bounds)

    async def parts(self, parts: Sequence[Any], each_s: float) -> AsyncIterator[Any]:
        """Parts that take so long each to come."""
        for part in parts:
            self.now_s += each_s
            yield part


def data(size: int) -> pb.UpdatePart:
    return pb.UpdatePart(data=bytes(size))


async def test_a_byte_now_and_then_is_no_progress() -> None:
    time, count = Time(), 0
    with pytest.raises(StalledError, match=r"2 bytes came while the server waited for 120 s; try again, with"):
        async for _ in Awaited(time.parts([data(1)] * 100, 40.0), time.wait()):
            count += 1
    assert count == 2
    assert time.now_s == 120.0


@pytest.mark.parametrize("message", [pb.UpdatePart(data=b""), answers_pb2.BundlePart(), pb.UpdatePart()])
async def test_nor_are_messages_that_bring_nothing(message: Any) -> None:
    time = Time()
    with pytest.raises(StalledError, match="0 bytes came"):
        async for _ in Awaited(time.parts([message] * 1_000, 0.1), time.wait()):
            pass
    assert time.now_s < 100.0


async def test_the_slowest_link_that_deadlines_allow_for_may_take_as_long_as_it_needs() -> None:
    time, count = Time(), 0
    async for _ in Awaited(time.parts([data(CHUNK_BYTES)] * 500, CHUNK_BYTES / 32_000), time.wait()):
        count += 1
    assert count == 500
    assert time.now_s > 16_000.0


async def test_answers_in_messages_of_their_own_are_progress_too() -> None:
    time, answer = Time(), answers_pb2.Answer(data=bytes(320_000))
    part = answers_pb2.BundlePart(answer=answers_pb2.DeviceAnswer(answer=answer))
    assert len([1 async for _ in Awaited(time.parts([part] * 100, 10.0), time.wait())]) == 100


async def test_time_in_which_the_server_does_something_else_does_not_count() -> None:
    time, count = Time(), 0
    async for _ in Awaited(time.parts([data(8)] * 10, 1.0), time.wait()):
        time.now_s += 1000.0  # held back for its link, or waiting for a turn
        count += 1
    assert count == 10


async def test_between_two_exchanges_of_a_session_nobody_is_waited_for() -> None:
    time, asked = Time(), 0

    async def fetch(request: pb.FetchModelRequest, context: Any) -> None:
        nonlocal asked
        asked += 1

    async def submit(parts: AsyncIterator[Any], context: Any) -> pb.UpdateReply:
        assert [len(part.data) async for part in parts] == [0, 8, 8]
        return pb.UpdateReply(accepted=True)

    async def answer(message: pb.RoundAnswer) -> None:
        raise AssertionError("nobody is asked here")

    asks = pb.FetchModelRequest(run_id=RUN_ID)
    payload = tensors_pb2.PayloadHeader(payload_bytes=16)
    header = pb.UpdateHeader(payload=payload, then_fetch=asks)

    async def said() -> AsyncIterator[pb.UpdatePart]:
        for _ in range(3):
            time.now_s += 1000.0
            yield pb.UpdatePart(fetch=asks)
            time.now_s += 1000.0  # trains
            yield pb.UpdatePart(header=header)
            for _ in range(2):
                time.now_s += 30.0
                yield data(8)

    await ChildStream(fetch, submit, answer, time.wait()).answer(said(), None)
    assert asked == 6


async def test_an_upload_in_a_session_that_drips_ends_it() -> None:
    time = Time()

    async def submit(parts: AsyncIterator[Any], context: Any) -> pb.UpdateReply:
        async for _ in parts:
            pass
        raise AssertionError("it has come")

    header = pb.UpdateHeader(child_id="device-009", payload=tensors_pb2.PayloadHeader(payload_bytes=1000))
    parts = time.parts([pb.UpdatePart(header=header), *[data(1)] * 1000], 50.0)
    nothing: Any = None
    with pytest.raises(StalledError, match="an upload of 'device-009' is too slow and was ended: 1 bytes"):
        await ChildStream(nothing, submit, nothing, time.wait()).answer(parts, None)


# --- on the wire ----------------------------------------------------------------------------------


class Servicer(LpsServicer):
    """One whose sessions are as impatient as its calls."""

    async def Attend(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> None:
        await ChildStream(self.FetchModel, self.SubmitUpdate, self._hear, SHORT).answer(requests, context)


class Link:
    """A cluster with a round open, over gRPC, that waits half a second for uploads."""

    def __init__(self, folder: Path) -> None:
        self.rounds, self.total = server_of(folder, children={"device-000": 2})
        self.refused: list[str] = []

    async def __aenter__(self) -> "Link":
        known = asyncio.Event()
        known.set()
        clusters: dict[str, Any] = {"lps-0": self.rounds}
        self._server = RpcServer(LinkMeter(), security=OPEN, uploads=SHORT, refused=self.refused.append)
        self._server.add(add_LpsServiceServicer_to_server, Servicer(clusters, known), "fedstrata.v1.LpsService")
        await self._server.start("127.0.0.1:0")
        self._channel = grpc.aio.insecure_channel(self._server.address)
        self.stub = LpsServiceStub(self._channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)
        await self._server.stop(0)

    def header(self, offset: int = 0) -> pb.UpdatePart:
        header = header_of("device-000", num_examples=2, offset=offset)
        header.home_id = "lps-0"
        return pb.UpdatePart(header=header)

    async def located(self) -> int:
        request = pb.LocateUpdateRequest(run_id=RUN_ID, child_id="device-000", home_id="lps-0", round=0)
        return int((await self.stub.LocateUpdate(request)).offset)


def check_passes(error: grpc.aio.AioRpcError) -> None:
    """Whether a caller may try again, and learns why it has to."""
    assert is_passing(error)
    assert dict(error.trailing_metadata())[ERROR_KEY] == StalledError.__name__
    assert "an upload of 'device-000' is too slow" in str(error.details())


@pytest.mark.parametrize("call_of", [lambda stub: stub.SubmitUpdate(), lambda stub: stub.Attend()])
async def test_who_stops_half_way_is_told_so_and_goes_on_from_there(
    tmp_path: Path, call_of: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with Link(tmp_path) as link, asyncio.timeout(60):
        call = call_of(link.stub)
        await call.write(link.header())
        await call.write(pb.UpdatePart(data=UPDATE[:HALF]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (call if hasattr(call, "__await__") else call.read())
        check_passes(caught.value)
        assert link.refused == ["stalled"]
        assert await link.located() == HALF
        rest = [link.header(HALF), pb.UpdatePart(data=UPDATE[HALF:])]
        assert (await link.stub.SubmitUpdate(iter(rest))).accepted
        await link.rounds.gather()
        assert list(link.total.mean()[:2]) == [1.0, 2.0]
    assert [said.message for said in caplog.records].count("call_refused") == 1


async def test_an_upload_that_does_not_say_that_it_is_over_ends_too(tmp_path: Path) -> None:
    async with Link(tmp_path) as link, asyncio.timeout(60):
        call = link.stub.SubmitUpdate()
        await call.write(link.header())
        await call.write(pb.UpdatePart(data=UPDATE))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        check_passes(caught.value)
        assert (await link.stub.SubmitUpdate(iter([link.header(len(UPDATE))]))).accepted


async def test_in_the_clear_a_call_that_never_begins_ends_as_well(tmp_path: Path) -> None:
    async with Link(tmp_path) as link, asyncio.timeout(60):
        with pytest.raises(
            grpc.aio.AioRpcError, match="an upload of an unknown sender is too slow and was ended: 0 bytes"
        ):
            await link.stub.SubmitUpdate()


async def test_a_round_without_it_is_not_banned(tmp_path: Path) -> None:
    rounds: RoundServer
    rounds, _ = server_of(tmp_path, children={"device-000": 2})
    time = Time()
    with pytest.raises(StalledError):
        await rounds.submit(header_of("device-000", num_examples=2), Awaited(time.parts([data(8)], 1e6), time.wait()))
    assert "device-000" not in rounds.refused


def test_an_upload_is_waited_for_longer_than_an_honest_sender_waits_for_a_chunk() -> None:
    assert UPLOAD_WAIT.first_s > 50.0 + CHUNK_BYTES / 32_000


def test_where_boards_may_have_links_as_slow_as_the_configured_ones_an_upload_is_waited_for_longer() -> None:
    links = "links={device_lps: {up_rate: 8kbit/s, down_rate: 1Gbit/s}}"
    text = "name: slow\npartition: {kind: iid, devices: 3, examples_per_device: 10}\n"
    real = parse_experiment(text, overrides=["clock=real", links])
    virtual = parse_experiment(text, overrides=["clock=virtual", links])
    assert upload_wait(virtual, 10_000) == UPLOAD_WAIT
    for size in (10_000, 10_000_000):  # nobody is given up who would not give up before
        assert upload_wait(virtual, size).first_s > payload_timeout_s(size)
    waited = upload_wait(real, 10_000)  # 10 kB at 1 kB/s, and a header of 4 KiB
    assert waited.first_s == pytest.approx(UPLOAD_WAIT.first_s + 14.1, abs=0.1)
    assert waited.least_bytes_per_s == UPLOAD_WAIT.least_bytes_per_s
