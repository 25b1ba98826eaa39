"""A device's stream to its LPS: fetches and updates in turn, as if each were a call of its own."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from fedstrata.errors import PayloadError, UnknownChildError
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkMeter
from fedstrata.rounds import ParentStream
from fedstrata.rpc.chunk import serialised_chunk, serialised_whole
from fedstrata.rpc.client import Connection, call_until_answered, is_passing
from fedstrata.rpc.counting import FRAME_BYTES
from fedstrata.rpc.server import RpcServer
from fedstrata.trust.security import OPEN
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1 import tensors_pb2
from fedstrata.v1.answers_pb2 import Answer
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub, add_LpsServiceServicer_to_server
from lps.servicer import LpsServicer

PAYLOAD = tensors_pb2.PayloadHeader(payload_bytes=12)
MODEL = [b"01234567", b"89ab"]
UPDATE = [b"abcdefgh", b"ijkl"]


class Rounds:
    """A cluster's rounds that answer without training: two chunks down, and what came up is kept.

    Sent for round 3 or later there is nothing new yet.
    """

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.answers: list[bytes] = []
        self.is_late = False
        self.hold = asyncio.Event()
        self.hold.set()

    async def fetch(self, request: pb.FetchModelRequest) -> AsyncIterator[pb.ModelPart | bytes]:
        await self.hold.wait()
        if request.sent_round not in {0, 1, 2}:
            yield pb.ModelPart(waiting=pb.Waiting(current_round=3))
            return
        yield pb.ModelPart(header=pb.ModelHeader(round=4, payload=PAYLOAD)).SerializeToString()
        for data in MODEL:
            yield pb.ModelPart(data=data).SerializeToString()

    async def submit(self, header: pb.UpdateHeader, parts: AsyncIterator[pb.UpdatePart]) -> pb.UpdateReply:
        if header.round < 0:
            raise PayloadError("round -1")
        if not self.is_late:
            self.received += [bytes(part.data) async for part in parts]
        return pb.UpdateReply(accepted=not self.is_late, current_round=header.round)

    async def hear(self, message: pb.RoundAnswer) -> None:
        if message.round < 0:
            raise PayloadError("round -1")
        self.answers.append(message.answer.data)


class Link:
    """A server and a stub of it."""

    def __init__(self) -> None:
        self.rounds = Rounds()
        self.at_parent, self.at_child = LinkMeter(), LinkMeter()
        self.streams = 0

    async def start(self) -> None:
        known = asyncio.Event()
        known.set()
        self.server = RpcServer(self.at_parent, security=OPEN)
        servicer = LpsServicer({"lps-0": self.rounds}, known)  # type: ignore[dict-item]
        self.server.add(add_LpsServiceServicer_to_server, servicer, "fedstrata.v1.LpsService")
        await self.server.start("127.0.0.1:0")
        self.connection = Connection(self.server.address, OPEN)
        self.stub = LpsServiceStub(self.connection.counted(self.at_child))

    def session(self) -> ParentStream:
        def attend(**options: object) -> object:
            self.streams += 1
            return self.stub.Attend(**options)

        return ParentStream(attend)

    async def stop(self) -> None:
        await self.connection.close()
        await self.server.stop(0)


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    made = Link()
    await made.start()
    yield made
    await made.stop()


def request(sent_round: int = 0, home_id: str = "lps-0") -> pb.FetchModelRequest:
    return pb.FetchModelRequest(home_id=home_id, sent_round=sent_round)


def asked(sent_round: int = 0, home_id: str = "lps-0") -> list[pb.UpdatePart]:
    """What a device sends that has no update."""
    return [pb.UpdatePart(fetch=request(sent_round, home_id))]


async def fetched(session: ParentStream, sent_round: int = 0, timeout_s: float = 20.0) -> list[pb.ModelPart]:
    return [part async for part in session.exchange(asked(sent_round), timeout_s)]


def update(round_number: int, *, data: bytes = b"") -> Iterator[pb.UpdatePart | bytes]:
    """An update in two chunks, or with all data beside its header."""
    header = pb.UpdateHeader(home_id="lps-0", round=round_number, payload=PAYLOAD, then_fetch=request(round_number))
    if data:
        yield serialised_whole(pb.UpdatePart, header, data)
        return
    yield pb.UpdatePart(header=header)
    for chunk in UPDATE:
        yield serialised_chunk(pb.UpdatePart, chunk)


async def exchanged(session: ParentStream, round_number: int, *, data: bytes = b"") -> list[pb.ModelPart]:
    return [part async for part in session.exchange(update(round_number, data=data), 20)]


def parts_of(answers: list[pb.ModelPart]) -> list[str | None]:
    return [part.WhichOneof("part") for part in answers]


async def test_rounds_follow_each_other_on_one_stream(link: Link) -> None:
    session = link.session()
    answers = [await fetched(session), await exchanged(session, 1), await exchanged(session, 2)]
    for header, *chunks in answers:
        assert header.header.round == 4
        assert [part.data for part in chunks] == MODEL
    assert parts_of(await exchanged(session, 3)) == ["waiting"]
    assert parts_of(await fetched(session, -1)) == ["waiting"]
    assert link.rounds.received == UPDATE * 3
    assert link.streams == 1


def answer(round_number: int) -> Iterator[pb.UpdatePart | bytes]:
    told = Answer(question="losses", data=b"0123")
    fields = {"home_id": "lps-0", "round": round_number, "then_fetch": request(round_number)}
    yield pb.UpdatePart(answer=pb.RoundAnswer(answer=told, **fields))


async def test_an_answer_to_a_question_is_answered_with_what_its_sender_asks_for_then(link: Link) -> None:
    session = link.session()
    first = [part async for part in session.exchange(answer(1), 20)]
    assert parts_of(first) == ["header", "data", "data"]
    assert parts_of([part async for part in session.exchange(answer(3), 20)]) == ["waiting"]
    assert parts_of(await exchanged(session, 2)) == ["header", "data", "data"]
    assert link.rounds.answers == [b"0123"] * 2
    assert link.streams == 1


async def test_an_answer_that_is_refused_ends_the_stream_with_the_reason(link: Link) -> None:
    async def told() -> list[pb.ModelPart]:
        return [part async for part in link.session().exchange(answer(-1), 20)]

    # where the reason comes while the answer is being written gRPC tells only that the stream broke: it is tried again
    with pytest.raises(PayloadError, match="round -1"):
        await call_until_answered(told, EventLog("test"), "Attend")


async def test_a_small_update_is_one_message(link: Link) -> None:
    session = link.session()
    small = b"".join(UPDATE)
    assert parts_of(await exchanged(session, 1, data=small)) == ["header", "data", "data"]
    assert parts_of(await exchanged(session, 2, data=small)) == ["header", "data", "data"]
    assert link.rounds.received == [small, small]


async def test_the_payload_of_an_update_that_nobody_wants_is_passed_over(link: Link) -> None:
    session = link.session()
    link.rounds.is_late = True
    late, *model = await exchanged(session, 1)
    assert late.HasField("reply")
    assert not late.reply.accepted
    assert parts_of(model) == ["header", "data", "data"]
    assert len(await fetched(session)) == 3
    assert link.streams == 1


async def test_bytes_count_as_those_of_the_calls_it_stands_for_and_alike_at_both_ends(link: Link) -> None:
    session = link.session()
    link.rounds.is_late = True  # the only update that is answered apart
    await fetched(session)
    await exchanged(session, 1)
    counts = {(key.direction, key.kind): n for key, n in link.at_child.snapshot().items()}
    assert counts == {(key.direction, key.kind): n for key, n in link.at_parent.snapshot().items()}

    apart = LinkMeter()
    connection = Connection(link.server.address, OPEN)
    stub = LpsServiceStub(connection.counted(apart))
    assert len([part async for part in stub.FetchModel(request())]) == 3
    await stub.SubmitUpdate(update(1))
    assert len([part async for part in stub.FetchModel(request())]) == 3
    expected = {(key.direction, key.kind): n for key, n in apart.snapshot().items()}
    await connection.close()
    assert counts.keys() == expected.keys()
    asked = request().ByteSize() + FRAME_BYTES
    # a tag and a length name the part, which a call needs not; what comes after an update is not asked for
    assert counts["up", "model"] == expected["up", "model"] - asked + 2
    assert counts["down", "update"] == expected["down", "update"] + 2
    assert counts["up", "update"] == expected["up", "update"]
    assert counts["down", "model"] == expected["down", "model"]


async def test_a_refusal_ends_the_stream_with_its_reason_and_the_next_exchange_opens_another(link: Link) -> None:
    session = link.session()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await exchanged(session, -1)
    # where the reason comes while a chunk is being written gRPC tells only that the stream broke: it is tried again
    assert refused.value.code() is grpc.StatusCode[PayloadError.status] or is_passing(refused.value)
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        [part async for part in session.exchange(asked(home_id="lps-9"), 20)]
    assert unknown.value.code() is grpc.StatusCode[UnknownChildError.status]
    assert len(await fetched(session)) == 3
    assert link.streams == 3


async def test_an_exchange_left_half_way_does_not_confuse_the_next(link: Link) -> None:
    session = link.session()
    async for part in session.exchange(asked(), 20):
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
    # which status it is depends on what was being written as the stream broke
    assert is_passing(gone.value)
