"""What a child in rounds asks of the clock: how long calls may take on its link, and what of a model is counted."""

from fedstrata.clock.calendar import UP
from fedstrata.clock.tier_links import TierLinks
from fedstrata.tensors import CHUNK_BYTES
from fedstrata.v1 import rounds_pb2 as pb


class ChildClock:
    """Asks for no time, and counts nothing."""

    slowest_s = 0.0  # how long the largest exchange of a round takes on the child's link
    piece_bytes = CHUNK_BYTES  # how large the pieces of a payload are

    def on_link_s(self, size: int) -> float:
        """Return how long so many bytes take on the child's link."""
        return 0.0

    def whole_bytes(self, header: pb.ModelHeader) -> int:
        """Return the bytes of a model and its header, as if nothing were resumed; 0 if nobody counts them."""
        return 0


class CountingChild(ChildClock):
    """Counts the bytes of models, for a timeline."""

    def whole_bytes(self, header: pb.ModelHeader) -> int:
        first = pb.ModelHeader()
        first.CopyFrom(header)
        first.offset = 0
        return int(first.ByteSize() + header.payload.payload_bytes)


class PacedChild(ChildClock):
    """Gives calls the time that links take, and cuts payloads as they want it."""

    def __init__(self, links: TierLinks, child_id: str, *, payload_bytes: int = 0, children: int = 1) -> None:
        """`children` share what is shared; `payload_bytes` is the largest that goes down and up in a round."""
        self._links, self._index = links, links.index_of(child_id) or 0
        self.slowest_s = links.slowest_s(self._index, payload_bytes, children)
        self.piece_bytes = links.piece_bytes(self._index, UP)

    def on_link_s(self, size: int) -> float:
        return self._links.slowest_s(self._index, size, 1)
