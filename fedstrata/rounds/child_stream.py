"""A parent's side of a session: a child's asking and its updates, one after the other on one stream."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fedstrata.rpc.uploads import UPLOAD_WAIT, Awaited, UploadWait, sender_of
from fedstrata.v1 import rounds_pb2 as pb


@dataclass(frozen=True)
class ChildStream:
    """Answers one child for as long as it stays, by the calls that its messages stand for."""

    fetch: Callable[[pb.FetchModelRequest, Any], Awaitable[None]]  # writes its parts to the context
    submit: Callable[[AsyncIterator[pb.UpdatePart], Any], Awaitable[pb.UpdateReply]]
    hear: Callable[[pb.RoundAnswer | pb.UpdateHeader], Awaitable[None]]  # what a child says beside its updates
    wait: UploadWait = UPLOAD_WAIT  # for what follows an update's header; between two exchanges nobody is in a hurry

    async def answer(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> None:
        """Answer all that comes."""
        parts = aiter(requests)
        async for part in parts:
            asked: pb.FetchModelRequest | None
            if part.HasField("fetch"):
                asked = part.fetch
            elif part.HasField("answer") or part.HasField("announced"):
                said = getattr(part, part.WhichOneof("part"))
                await self.hear(said)
                asked = said.then_fetch
            else:
                asked = await self._take(part, parts, context)
            del part  # while its sender waits for the next model, its update is not held
            if asked is not None:
                await self.fetch(asked, context)

    async def _take(self, first: Any, parts: AsyncIterator[Any], context: Any) -> pb.FetchModelRequest | None:
        """Take an update where others follow it; gives what its sender asks for then."""
        update = _UpdateParts(first, Awaited(parts, self.wait, sender_of(first)))
        reply = await self.submit(update, context)
        async for part in update:
            del part  # of an update that was late or there already
        then = pb.FetchModelRequest()
        then.CopyFrom(first.header.then_fetch)
        is_asked = first.header.HasField("then_fetch")
        if not (is_asked and reply.accepted):
            await context.write(pb.ModelPart(reply=reply))
        return then if is_asked else None


class _UpdateParts:
    """The parts of one update, where others follow it on the stream; holds none that it has given."""

    def __init__(self, first: pb.UpdatePart, parts: AsyncIterator[pb.UpdatePart]) -> None:
        self._first: pb.UpdatePart | None = first
        self._parts = parts
        self._left = 0

    def __aiter__(self) -> "_UpdateParts":
        return self

    async def __anext__(self) -> pb.UpdatePart:
        if self._first is not None:
            first, self._first = self._first, None
            if first.HasField("header"):  # else it is refused, by whoever is given it
                self._left = first.header.payload.payload_bytes - first.header.offset
            return first
        if self._left <= 0:
            raise StopAsyncIteration
        part = await anext(self._parts)
        self._left -= len(part.data)
        return part
