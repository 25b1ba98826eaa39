"""A processor with a memory of its own, for tests."""

from typing import Any

import torch
from numpy.typing import NDArray

from fedstrata.errors import ResourceError
from fedstrata.tensors.processor import Processor


class Apart(Processor):
    """The CPU as if it had a memory of its own, in which the data of devices stay; it counts what is sent there."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.sent = 0

    def held(self, values: NDArray[Any]) -> torch.Tensor:
        self.sent += 1
        return super().held(values)


class Narrow(Apart):
    """A memory that is full as soon as the data of one device are in it."""

    room = 2  # arrays: inputs and targets

    def held(self, values: NDArray[Any]) -> torch.Tensor:
        if self.sent == self.room:
            raise torch.cuda.OutOfMemoryError("tried to allocate 40 beads")
        return super().held(values)


class Taken(Apart):
    """A memory without room for the process itself."""

    context_bytes = 3 << 20

    def start(self) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA error: out of memory")


class Shared(Apart):
    """A memory in which no share is large enough."""

    processes = 2

    def limit(self, share: float) -> None:
        raise ResourceError(f"{share} of the beads are too few")


class Tight(Apart):
    """A memory without room for a few examples."""

    def tensor(self, values: NDArray[Any]) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("tried to allocate 40 beads")
