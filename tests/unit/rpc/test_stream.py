"""Streams hold no part longer than it takes to deal with it, however long the next is in coming."""

from collections.abc import AsyncIterator
from typing import Any
from weakref import ref

import grpc
import pytest

from fedstrata.errors import PayloadError
from fedstrata.rounds.parent.child_calls import ChildStream
from fedstrata.rpc.chunk import part_parser, serialised_whole
from fedstrata.rpc.stream import Parts, Turns, header_first, write_all
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1 import tensors_pb2


async def uncalled(*_: object) -> None:
    raise AssertionError("nobody answers a question or fetches a model here")


class Part:
    """Something that can be seen to be gone."""

    data = b"1234"


class Context:
    """A call's context that gives so many parts and keeps none, nor any that it is given."""

    def __init__(self, count: int = 0) -> None:
        self._left = count
        self.last: ref[Any] | None = None
        self.written = 0

    def check_gone(self) -> None:
        assert self.last is None or self.last() is None

    async def read(self) -> Any:
        self.check_gone()
        if not self._left:
            return grpc.aio.EOF  # type: ignore[attr-defined]
        self._left -= 1
        part = Part()
        self.last = ref(part)
        return part

    async def write(self, part: Any) -> None:
        self.written += 1
        self.last = ref(part)


async def test_a_part_is_gone_when_the_next_is_read() -> None:
    context, count = Context(3), 0
    async for part in Parts(context):
        assert isinstance(part, Part)
        del part
        count += 1
    assert count == 3


async def test_a_payload_that_came_with_its_header_follows_it() -> None:
    parse, header = part_parser(pb.UpdatePart), pb.UpdateHeader(round=3)
    messages = [serialised_whole(pb.UpdatePart, header, b"1234"), pb.UpdatePart(data=b"56").SerializeToString()]

    class Stream:
        async def read(self) -> Any:
            return parse(messages.pop(0)) if messages else grpc.aio.EOF  # type: ignore[attr-defined]

    parts = [part async for part in Parts(Stream())]
    assert parts[0].header == header
    assert [bytes(part.data) for part in parts[1:]] == [b"1234", b"56"]


async def test_who_waits_for_a_turn_holds_no_part() -> None:
    context, count = Context(3), 0
    async for part in Turns(1).of("device-000", Parts(context)):
        assert isinstance(part, Part)
        del part
        count += 1
    assert count == 3


async def test_a_part_that_was_written_is_gone_when_the_next_is_made() -> None:
    context = Context()

    async def made() -> AsyncIterator[Part]:
        for _ in range(3):
            context.check_gone()
            yield Part()

    await write_all(made(), context)
    assert context.written == 3


async def test_a_part_of_an_update_is_gone_before_the_next_is_asked_for() -> None:
    asks, payload = pb.FetchModelRequest(sent_round=7), tensors_pb2.PayloadHeader(payload_bytes=8)
    header = pb.UpdateHeader(payload=payload, then_fetch=asks)
    seen: list[ref[Part]] = []
    asked: list[pb.FetchModelRequest] = []

    async def requests() -> AsyncIterator[Any]:
        yield pb.UpdatePart(header=header)
        yield Part()
        yield Part()

    async def submit(parts: AsyncIterator[Any], _: Any) -> pb.UpdateReply:
        await anext(parts)
        async for part in parts:
            seen.append(ref(part))
            del part
            if len(seen) == 1:  # as one that waits for a turn does: of all such, parts would add up
                assert seen[0]() is None
        return pb.UpdateReply(accepted=True)

    async def fetch(request: pb.FetchModelRequest, context: Any) -> None:
        asked.append(request)

    await ChildStream(fetch, submit, uncalled).answer(requests(), Context())
    assert (len(seen), asked) == (2, [asks])


async def test_who_begins_an_update_with_data_is_refused() -> None:
    parse = part_parser(pb.UpdatePart)

    async def requests() -> AsyncIterator[Any]:
        yield parse(pb.UpdatePart(data=b"1234").SerializeToString())

    async def submit(parts: AsyncIterator[Any], _: Any) -> pb.UpdateReply:
        await header_first(parts, "an update")
        raise AssertionError("it was taken")

    with pytest.raises(PayloadError, match="an update must begin with its header"):
        await ChildStream(uncalled, submit, uncalled).answer(requests(), Context())


async def test_who_sends_another_header_in_the_place_of_data_is_refused() -> None:
    parse, payload = part_parser(pb.UpdatePart), tensors_pb2.PayloadHeader(payload_bytes=8)
    header = pb.UpdateHeader(payload=payload)

    async def requests() -> AsyncIterator[Any]:
        yield parse(pb.UpdatePart(header=header).SerializeToString())
        yield parse(serialised_whole(pb.UpdatePart, header, b"12345678"))

    taken: list[Any] = []

    async def submit(parts: AsyncIterator[Any], _: Any) -> pb.UpdateReply:
        await header_first(parts, "an update")
        async for part in parts:
            taken.append(part.WhichOneof("part"))
            raise PayloadError("an update must have only data after its header")
        raise AssertionError("nothing came")

    with pytest.raises(PayloadError, match="only data after its header"):
        await ChildStream(uncalled, submit, uncalled).answer(requests(), Context())
    assert taken == ["header"]


async def test_a_stream_begins_with_its_header() -> None:
    async def parts(*given: pb.UpdatePart) -> AsyncIterator[pb.UpdatePart]:
        for part in given:
            yield part

    header = pb.UpdateHeader(run_id="r")
    assert await header_first(parts(pb.UpdatePart(header=header)), "an update") == header
    for wrong in ([], [pb.UpdatePart(data=b"x")]):
        with pytest.raises(PayloadError, match="an update must begin with its header"):
            await header_first(parts(*wrong), "an update")
