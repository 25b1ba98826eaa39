"""The offer of a round to its children: a model, or the streams of several clusters. A stream holds the current values
of tensors that are averaged together (`fedstrata.streams`). The header and the chunks of an offer are made once for all
children.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.round_side import TakeTurn
from fedstrata.experiment import Encoding
from fedstrata.process.fault_points import reach
from fedstrata.rpc.chunk import serialised_chunk, serialised_whole
from fedstrata.rpc.payload import PartLayouts, parts_header
from fedstrata.store import AnyModel
from fedstrata.streams.streams import MODEL_PART
from fedstrata.tensors import CHUNK_BYTES, PayloadCodec
from fedstrata.tensors.codec import SCALED
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb

KEPT_CHUNKS = 3  # enough, because children begin a download together and stay close to each other


class SharedChunks:
    """Read, encode and serialise each chunk of a model in a thread, once for all children. Keep the last three."""

    def __init__(self, codec: PayloadCodec, model: AnyModel) -> None:
        self._codec = codec
        self._model = model
        self._made: OrderedDict[int, asyncio.Future[bytes]] = OrderedDict()

    async def at(self, offset: int) -> bytes:
        """Return the message with the chunk that begins at byte `offset` of the payload."""
        made = self._made.get(offset)
        if made is None:
            made = asyncio.get_running_loop().run_in_executor(None, self._make, offset)
            self._made[offset] = made
            if len(self._made) > KEPT_CHUNKS:
                self._made.popitem(last=False)
        return await asyncio.shield(made)  # other children may still wait for this chunk

    def end_of(self, offset: int) -> int:
        """Return the end of the chunk that begins at byte `offset` of the payload."""
        return min(offset + CHUNK_BYTES, self._codec.payload_bytes)

    def _make(self, offset: int) -> bytes:
        return serialised_chunk(pb.ModelPart, next(self._codec.chunks(self._model.read, offset)))


@dataclass
class Offer:
    """Hold what a round sends to children: a model, or the streams of several clusters in one vector. A stream is the
    current values of tensors that are averaged together.
    """

    model: AnyModel
    cluster: int = 0  # cluster of the children
    clusters: int = 0  # number of clusters with streams in the vector; 0 if the vector is one model
    parts: PartLayouts | None = None  # parts of the vector, if it is more than one model
    offered: Sequence[int] = ()  # clusters with streams in the vector, if they are not all clusters
    offers: Sequence[Sequence[int]] = ()  # for an LPS: by cluster, the offered clusters, if they are not all
    withdrawn: Sequence[str] = ()  # tensors that are no longer sent
    told: answers_pb2.Answer | None = None  # arrays that the GPS sends to all devices
    header: pb.ModelHeader = field(init=False)
    transfer: Exchanged = field(init=False)  # what times are calculated from
    codec: PayloadCodec = field(init=False)
    chunks: SharedChunks = field(init=False)
    small_reply: bytes | None = field(init=False, default=None)  # the whole reply, serialised once for all children

    @property
    def whole_bytes(self) -> int:
        """The size of the header and the payload that a child receives, in bytes."""
        return self.header.ByteSize() + self.codec.payload_bytes

    def header_part(self, offset: int) -> pb.ModelPart:
        """Return the first message of a download that begins at byte `offset` of the payload."""
        header = pb.ModelHeader()
        header.CopyFrom(self.header)
        header.offset = offset
        return pb.ModelPart(header=header)

    async def sent(
        self, take_turn: TakeTurn, child_id: str, number: int, offset: int
    ) -> AsyncIterator[pb.ModelPart | bytes]:
        """Yield the messages with which this offer is sent to a child in round `number`: a header, then the chunks from
        byte `offset` on. A small model is one message.
        """
        if self.small_reply is not None:
            yield self.small_reply
            reach("download", number)
            return
        yield self.header_part(offset)
        while offset < self.codec.payload_bytes:
            async with take_turn(child_id):
                yield await self.chunks.at(offset)
            offset = self.chunks.end_of(offset)
            reach("download", number)

    def announce(self, header: pb.ModelHeader, encoding: Encoding) -> None:
        """Prepare the header and the chunks of this offer. `header` has the values that all offers of the round share.
        Raises PayloadError if the encoding cannot hold a value of the model.
        """
        scales = self.model.scales() if encoding in SCALED else []
        self.codec = PayloadCodec(self.model.layout, encoding, scales)
        self.codec.check_fits(self.model.pieces())
        parts = self.parts if self.parts is not None else [(MODEL_PART, self.model.layout)]
        self.header = pb.ModelHeader()
        self.header.CopyFrom(header)
        self.header.payload.CopyFrom(parts_header(self.codec, parts, [0] * len(parts)))
        self.header.digest = self.model.digest
        self.header.cluster, self.header.clusters = self.cluster, self.clusters
        self.header.offered.extend(self.offered)
        self.header.withdrawn.extend(self.withdrawn)
        if self.told is not None:
            self.header.told.CopyFrom(self.told)
        self.header.offers.extend(pb.ClusterNumbers(clusters=offered) for offered in self.offers)
        self.transfer = Exchanged.of_model(self.header)
        self.chunks = SharedChunks(self.codec, self.model)
        if self.codec.is_small:
            self.small_reply = serialised_whole(
                pb.ModelPart, self.header, next(self.codec.chunks(self.model.read), b"")
            )
