"""The chunks of a round's model as messages, made once for all children who read at about the same time."""

import asyncio
from collections import OrderedDict

from fedstrata.rpc.chunk import serialised_chunk
from fedstrata.store import AnyModel
from fedstrata.tensors import CHUNK_BYTES, PayloadCodec
from fedstrata.v1 import rounds_pb2 as pb

KEPT_CHUNKS = 8  # children of a round begin together and stay close to each other


class SharedChunks:
    """Reads, encodes and serialises each chunk in a thread and keeps the last few."""

    def __init__(self, codec: PayloadCodec, model: AnyModel) -> None:
        self._codec = codec
        self._model = model
        self._made: OrderedDict[int, asyncio.Future[bytes]] = OrderedDict()

    async def at(self, offset: int) -> bytes:
        """The message with the chunk that begins at a byte of the payload."""
        made = self._made.get(offset)
        if made is None:
            made = asyncio.get_running_loop().run_in_executor(None, self._make, offset)
            self._made[offset] = made
            if len(self._made) > KEPT_CHUNKS:
                self._made.popitem(last=False)
        return await asyncio.shield(made)  # who waits for it beside this child still wants it

    def end_of(self, offset: int) -> int:
        """Where the chunk ends that begins at a byte of the payload."""
        return min(offset + CHUNK_BYTES, self._codec.payload_bytes)

    def _make(self, offset: int) -> bytes:
        return serialised_chunk(pb.ModelPart, next(self._codec.chunks(self._model.read, offset)))
