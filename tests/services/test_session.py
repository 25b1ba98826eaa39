"""A device's stream to its LPS: fetches and updates in turn, as if each were a call of its own."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from fedstrata.errors import PayloadError, UnknownChildError
from fedstrata.metrics import LinkMeter
from fedstrata.rounds import Session
from fedstrata.rpc.client import is_passing, open_channel
from fedstrata.rpc.server import RpcServer
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1 import tensors_pb2
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub, add_LpsServiceServicer_to_server
from lps.servicer import LpsServicer

PAYLOAD = tensors_pb2.PayloadHeader(payload_bytes=12)


class Rounds:
    """A cluster's rounds that answer without training: two chunks down, and what came up is kept."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.is_late = False
        self.hold = asyncio.Event()
        self.hold.set()

    async def fetch(self, request: pb.FetchModelRequest) -> AsyncIterator[pb.ModelPart | bytes]:
        await self.hold.wait()
        if request.sent_round < 0:
            yield pb.ModelPart(waiting=pb.Waiting(current_round=3))
            return
        yield pb.ModelPart(header=pb.ModelHeader(round=4, payload=PAYLOAD)).SerializeToString()
        for data in (b"01234567", b"89ab"):
            yield pb.ModelPart(data=data).SerializeToString()

    async def submit(self, header: pb.UpdateHeader, parts: AsyncIterator[pb.UpdatePart]) -> pb.UpdateReply:
        if header.round < 0:
            raise PayloadError("round -1")
        if not self.is_late:
            self.received += [part.data async for part in parts]
        return pb.UpdateReply(accepted=not self.is_late, current_round=header.round)


class Link:
    """A server and a stub of it."""

    def __init__(self) -> None:
        self.rounds = Rounds()
        self.at_parent, self.at_child = LinkMeter(), LinkMeter()
        self.streams = 0

    async def start(self) -> None:
        known = asyncio.Event()
        known.set()
        self.server = RpcServer(self.at_parent)
        servicer = LpsServicer({"lps-0": self.rounds}, known)  # type: ignore[dict-item]
        self.server.add(add_LpsServiceServicer_to_server, servicer, "fedstrata.v1.LpsService")
        await self.server.start("127.0.0.1:0")
        self.channel, counting = open_channel(self.server.address, self.at_child)
        self.stub = LpsServiceStub(counting)

    def session(self) -> Session:
        def attend(**options: object) -> object:
            self.streams += 1
            return self.stub.Attend(**options)

        return Session(attend)

    async def stop(self) -> None:
        await self.channel.close(None)
        await self.server.stop(0)


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    made = Link()
    await made.start()
    yield made
    await made.stop()


def request(sent_round: int = 0, cluster_id: str = "lps-0") -> pb.FetchModelRequest:
    return pb.FetchModelRequest(cluster_id=cluster_id, sent_round=sent_round)


async def fetched(session: Session, sent_round: int = 0, timeout_s: float = 20.0) -> list[pb.ModelPart]:
    return [part async for part in session.fetch(request(sent_round), timeout=timeout_s)]


async def update(round_number: int, *chunks: bytes) -> AsyncIterator[pb.UpdatePart]:
    yield pb.UpdatePart(header=pb.UpdateHeader(cluster_id="lps-0", round=round_number, payload=PAYLOAD))
    for data in chunks:
        yield pb.UpdatePart(data=data)


async def test_rounds_follow_each_other_on_one_stream(link: Link) -> None:
    session = link.session()
    for number in (1, 2, 3):
        header, *chunks = await fetched(session)
        assert header.header.round == 4
        assert [part.data for part in chunks] == [b"01234567", b"89ab"]
        reply = await session.submit(update(number, b"abcdefgh", b"ijkl"), timeout=20)
        assert (reply.accepted, reply.current_round) == (True, number)
    assert [part.WhichOneof("part") for part in await fetched(session, -1)] == ["waiting"]
    assert link.rounds.received == [b"abcdefgh", b"ijkl"] * 3
    assert link.streams == 1


async def test_the_payload_of_an_update_that_nobody_wants_is_passed_over(link: Link) -> None:
    session = link.session()
    link.rounds.is_late = True
    assert not (await session.submit(update(1, b"abcdefgh", b"ijkl"), timeout=20)).accepted
    assert len(await fetched(session)) == 3
    assert link.streams == 1


async def test_bytes_count_as_those_of_the_calls_it_stands_for_and_alike_at_both_ends(link: Link) -> None:
    session = link.session()
    await fetched(session)
    await session.submit(update(1, b"abcdefgh", b"ijkl"), timeout=20)
    counts = {(key.direction, key.kind): n for key, n in link.at_child.snapshot().items()}
    assert counts == {(key.direction, key.kind): n for key, n in link.at_parent.snapshot().items()}

    apart = LinkMeter()
    channel, counting = open_channel(link.server.address, apart)
    stub = LpsServiceStub(counting)
    assert len([part async for part in stub.FetchModel(request())]) == 3
    await stub.SubmitUpdate(update(1, b"abcdefgh", b"ijkl"))
    expected = {(key.direction, key.kind): n for key, n in apart.snapshot().items()}
    await channel.close(None)
    assert counts.keys() == expected.keys()
    for key, envelope in ((("up", "model"), 2), (("down", "update"), 2), (("up", "update"), 0), (("down", "model"), 0)):
        assert counts[key] == expected[key] + envelope  # the tag and length of the part that a call needs not name


async def test_a_refusal_ends_the_stream_with_its_reason_and_the_next_exchange_opens_another(link: Link) -> None:
    session = link.session()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await session.submit(update(-1, b"abcdefgh", b"ijkl"), timeout=20)
    # where the reason comes while a chunk is being written gRPC tells only that the stream broke: it is tried again
    assert refused.value.code() is PayloadError.status or is_passing(refused.value)
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        [part async for part in session.fetch(request(cluster_id="lps-9"), timeout=20)]
    assert unknown.value.code() is UnknownChildError.status
    assert len(await fetched(session)) == 3
    assert link.streams == 3


async def test_an_exchange_left_half_way_does_not_confuse_the_next(link: Link) -> None:
    session = link.session()
    async for part in session.fetch(request(), timeout=20):
        assert part.HasField("header")
        break
    assert len(await fetched(session)) == 3
    assert link.streams == 2


async def test_an_answer_that_does_not_come_in_time_is_a_deadline_exceeded(link: Link) -> None:
    session = link.session()
    link.rounds.hold.clear()
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await fetched(session, timeout_s=0.05)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    link.rounds.hold.set()
    assert len(await fetched(session)) == 3


async def test_a_parent_that_goes_away_is_an_error_that_passes(link: Link) -> None:
    session = link.session()
    await fetched(session)
    link.rounds.hold.clear()
    asking = asyncio.ensure_future(fetched(session))
    await asyncio.sleep(0)
    await link.server.stop(0)
    with pytest.raises(grpc.aio.AioRpcError) as gone:
        await asking
    assert gone.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
