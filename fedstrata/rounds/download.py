"""What has arrived of a model at a child, until it is all there."""

from dataclasses import dataclass, field

import numpy as np

from fedstrata.tensors import Flat, PayloadCodec
from fedstrata.v1 import rounds_pb2 as pb


@dataclass
class Download:
    """What has arrived of a model."""

    header: pb.ModelHeader
    codec: PayloadCodec
    flat: Flat = field(default_factory=lambda: np.empty(0, np.float32))
    offset: int = 0

    def add(self, data: bytes | memoryview) -> None:
        values = self.codec.decode(data, self.offset)
        if len(values) == self.codec.layout.size and values.flags.aligned:  # all of it, and as it can be used
            self.flat, self.offset = values, len(data)
            return
        if not len(self.flat):
            self.flat = np.empty(self.codec.layout.size, np.float32)
        start = self.offset // self.codec.element_bytes
        self.flat[start : start + len(values)] = values
        self.offset += len(data)


def are_of_one_model(one: pb.ModelHeader, other: pb.ModelHeader) -> bool:
    """Whether two headers are of the same model."""
    return (one.round, one.digest) == (other.round, other.digest)
