"""A parent's side of a session: a child's asking and its updates, one after the other on one stream."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fedstrata.v1 import rounds_pb2 as pb


@dataclass(frozen=True)
class Attending:
    """Answers one child for as long as it stays, by the two calls that its messages stand for."""

    fetch: Callable[[pb.FetchModelRequest, Any], Awaitable[None]]  # writes its parts to the context
    submit: Callable[[AsyncIterator[pb.UpdatePart], Any], Awaitable[pb.UpdateReply]]

    async def answer(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> None:
        """Answer all that comes."""
        parts = aiter(requests)
        async for part in parts:
            asked = part.fetch if part.HasField("fetch") else await self._take(part, parts, context)
            del part  # while its sender waits for the next model, its update is not held
            if asked is not None:
                await self.fetch(asked, context)

    async def _take(self, first: Any, parts: AsyncIterator[Any], context: Any) -> pb.FetchModelRequest | None:
        """Take an update where others follow it; gives what its sender asks for then."""
        update = _update_of(first, parts)
        reply = await self.submit(update, context)
        async for _ in update:
            pass  # what is left of an update that was late or there already
        then = pb.FetchModelRequest()
        then.CopyFrom(first.header.then_fetch)
        is_asked = first.header.HasField("then_fetch")
        if not (is_asked and reply.accepted):
            await context.write(pb.ModelPart(reply=reply))
        return then if is_asked else None


async def _update_of(first: pb.UpdatePart, parts: AsyncIterator[pb.UpdatePart]) -> AsyncIterator[pb.UpdatePart]:
    """The parts of one update, where others follow it on the stream."""
    yield first
    left = first.header.payload.payload_bytes - first.header.offset - len(first.header.data)
    while left > 0 and (part := await anext(parts, None)) is not None:
        left -= len(part.data)
        yield part
        del part  # the next may be long in coming
