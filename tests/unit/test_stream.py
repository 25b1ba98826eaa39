"""Streams hold no part longer than it takes to deal with it, however long the next is in coming."""

from collections.abc import AsyncIterator
from typing import Any
from weakref import ref

import grpc
import pytest

from fedstrata.errors import PayloadError
from fedstrata.rounds.turns import Turns
from fedstrata.rpc.stream import Parts, header_first, write_all
from fedstrata.v1 import rounds_pb2 as pb


class Part:
    """Something that can be seen to be gone."""


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


async def test_who_waits_for_a_turn_holds_no_part() -> None:
    context, count = Context(3), 0
    async for part in Turns(1).of(Parts(context)):
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


async def test_a_stream_begins_with_its_header() -> None:
    async def parts(*given: pb.UpdatePart) -> AsyncIterator[pb.UpdatePart]:
        for part in given:
            yield part

    header = pb.UpdateHeader(run_id="r")
    assert await header_first(parts(pb.UpdatePart(header=header)), "an update") == header
    for wrong in ([], [pb.UpdatePart(data=b"x")]):
        with pytest.raises(PayloadError, match="an update begins with its header"):
            await header_first(parts(*wrong), "an update")
