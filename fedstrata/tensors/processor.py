"""The processor on which a device computes. Only this module makes, fills and reads the device's torch tensors. All
other code uses the processor of the tensors that it gets. So a new kind of processor needs only new code in this
module.

Torch allocates every tensor, so that its alignment is always the same. This matters because the rounding of a matrix
product may depend on the alignment.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:
    import torch


class Processor:
    """Describe and start a processor (one of torch's devices), and make tensors on it."""

    processes: int | None = None
    """The number of device processes of a run on one machine; None: one per core."""
    context_bytes = 0
    """The bytes that one process takes of the processor's own memory before it holds any tensor."""
    keeps_data = True
    """True if the data of devices stay in the processor's own memory."""
    may_stack = False
    """True if devices may train together, because the number of devices in a stack changes no bit."""

    def __init__(self, device: str) -> None:
        self._device = device

    def missing(self) -> str:
        """Return a text that says what this machine lacks to use the processor, with advice. If nothing is missing,
        return "". The call takes none of the processor's memory.
        """
        return ""

    def start(self) -> None:
        """Let torch compute the same bits each time. This is called once per process, before any arithmetic on the
        processor. Raises ResourceError if the processor has no room for the process.
        """

    def memory(self) -> int | None:
        """Return the size of the processor's own memory in bytes. If it has no memory of its own, or the size is
        unknown, return None. This is called only if `missing` returns "". The call takes none of the memory.
        """
        return None

    def limit(self, share: float) -> None:
        """Let this process use at most this share of the processor's own memory, between 0 and 1. This is called after
        `start` if several processes share the processor. Raises ResourceError if the share is too small for a process.
        """

    def kind(self) -> str:
        """Return the name and versions of the processor, on which the bits of all results depend. For the CPU, return
        "".
        """
        return ""

    def generators(self) -> "tuple[torch.Generator, ...]":
        """Return torch's random generators, from which modules on this processor draw, for example masks of dropout."""
        import torch

        return (torch.default_generator,)

    def is_full(self, error: BaseException) -> bool:
        """Return whether an error of a computation says that the processor has no memory left."""
        import torch

        return isinstance(error, torch.cuda.OutOfMemoryError)  # torch 2.4 has it only there

    def tensor(self, values: NDArray[Any]) -> "torch.Tensor":
        """Return a copy of an array."""
        import torch

        return torch.tensor(values, device=self._device)

    def tensors(self, values: Mapping[str, NDArray[Any]]) -> "dict[str, torch.Tensor]":
        """Return copies of arrays by name."""
        return {name: self.tensor(array) for name, array in values.items()}

    def shared(self, values: NDArray[Any]) -> "torch.Tensor":
        """Return an array as a tensor, if possible in the same memory. Use this only for values that no matrix product
        uses.
        """
        import torch

        return torch.from_numpy(values).to(self._device)

    def held(self, values: NDArray[Any]) -> "torch.Tensor":
        """Return an array as a tensor from which batches are gathered. Array and tensor must not change afterwards."""
        return self.tensor(values)

    def zeros(self, *shape: int) -> "torch.Tensor":
        """Return a tensor of zeros, float32."""
        import torch

        return torch.zeros(shape, device=self._device)

    def module(self, module: "torch.nn.Module") -> "torch.nn.Module":
        """Move a module's parameters and buffers to this processor."""
        return module.to(self._device)


class Staging:
    """Fill a tensor with values of NumPy: write them into `array`, then call `send`."""

    def __init__(self, target: "torch.Tensor", dtype: DTypeLike = np.float32) -> None:
        """Prepare the tensor `target`, float32. Values of another type in `array` are converted."""
        self._target = target
        # The tensor's own memory if this is possible, so that nothing is copied.
        self._is_own = target.is_cpu and target.is_contiguous() and np.dtype(dtype) == np.float32
        self.array: NDArray[Any] = target.numpy() if self._is_own else np.zeros(target.shape, dtype)

    def send(self, rows: int) -> None:
        """Write the first rows of `array` into the tensor."""
        import torch

        if not self._is_own:
            self._target[:rows].copy_(torch.from_numpy(self.array[:rows]))


def read(tensor: "torch.Tensor") -> NDArray[Any]:
    """Return the values of a tensor. If possible, the array has the tensor's memory."""
    return tensor.detach().cpu().numpy()


class Cpu(Processor):
    """Compute on the CPU."""

    keeps_data = False
    may_stack = True

    def __init__(self) -> None:
        super().__init__("cpu")

    def held(self, values: NDArray[Any]) -> "torch.Tensor":
        """Return an array as a tensor, in the same memory unless the array is read-only or not contiguous."""
        import torch

        return torch.from_numpy(np.require(values, requirements=["C", "W"]))


CPU = Cpu()
