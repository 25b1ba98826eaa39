"""One stream of one child's update, from its header to its last byte or to the stream that takes its place."""

from dataclasses import dataclass

from fedstrata.rpc.stream import Supersedable
from fedstrata.tensors import PayloadCodec


@dataclass
class Upload(Supersedable):
    """One stream of one child's update; a newer stream of the same child supersedes it."""

    child_id: str
    codec: PayloadCodec
    weights: tuple[int, ...]  # that its parts announce
    offset: int

    def is_continued_by(self, other: "Upload") -> bool:
        """Whether the bytes of both can be of one update."""
        return (self.weights, self.codec.scales) == (other.weights, other.codec.scales)
