"""A GPU of NVIDIA. The bits of a result depend on the GPU's kind and on the versions of CUDA's libraries, and not on
the other work of the GPU.
"""

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from fedstrata.errors import ResourceError
from fedstrata.tensors.processor import Processor

if TYPE_CHECKING:
    import torch

LEAST_FREE = 1 << 30  # bytes for a context and a small model


class Cuda(Processor):
    """Compute on the first GPU that CUDA shows this process (`CUDA_VISIBLE_DEVICES` chooses another)."""

    processes = 1  # each has a context of about 0.5 GB on the GPU
    context_bytes = 1 << 29

    def __init__(self) -> None:
        super().__init__("cuda")

    def missing(self) -> str:
        """Return what this machine lacks: a CUDA build of torch, a driver, or a GPU."""
        import torch

        if torch.version.cuda is None:
            return f"torch {torch.__version__} has no CUDA build; install one, or choose cpu"
        if not torch.cuda.is_available():
            return (
                f"torch {torch.__version__} for CUDA {torch.version.cuda} finds no driver or no GPU; see if nvidia-smi "
                "lists one, or choose cpu"
            )
        return ""

    def start(self) -> None:
        """Choose algorithms that always give the same bits, and full float32. Raises ResourceError if the GPU's memory
        is full.
        """
        import torch

        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when CUDA starts; without it cuBLAS may vary
        cudnn: Any = torch.backends.cudnn
        parts: tuple[Any, ...] = (torch.backends, torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
        for part in parts:
            part.fp32_precision = "ieee"  # and not TF32, which has 10 bits
        cudnn.benchmark = False  # it would choose algorithms by their time
        cudnn.deterministic = True
        free, _ = torch.cuda.mem_get_info()
        if free < LEAST_FREE:
            raise ResourceError(
                f"{torch.cuda.get_device_name()} has {free >> 20} MB of free memory, and a process needs "
                f"{LEAST_FREE >> 20} MB; end other programs on it, or use fewer device processes"
            )

    def memory(self) -> int:
        """Return the size of the GPU's memory, in bytes."""
        import torch

        total: int = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        return total

    def limit(self, share: float) -> None:
        """Limit torch's own memory on the GPU. Torch and the process's context then take at most `share` of the GPU's
        memory.
        """
        import torch

        total = self.memory()
        allowed = int(share * total)
        if allowed < LEAST_FREE:
            raise ResourceError(
                f"a process's share of the memory of {torch.cuda.get_device_name()} is {allowed >> 20} MB, and a "
                f"process needs {LEAST_FREE >> 20} MB; use fewer device processes"
            )
        torch.cuda.set_per_process_memory_fraction((allowed - self.context_bytes) / total)

    def kind(self) -> str:
        """Return the GPU's name, architecture and number of multiprocessors, and the versions of its libraries. A part
        of a GPU (MIG) has fewer multiprocessors, so it is a kind of its own.
        """
        import torch

        facts, cudnn = torch.cuda.get_device_properties(), torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return (
            f"{facts.name} sm_{facts.major}{facts.minor} with {facts.multi_processor_count} multiprocessors, torch "
            f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn}"
        )

    def is_full(self, error: BaseException) -> bool:
        """Return whether an error says that the GPU's memory is full. Errors of CUDA's libraries are recognised by
        their text, because they have no class of their own.
        """
        texts = ("CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
        return super().is_full(error) or (isinstance(error, RuntimeError) and any(each in str(error) for each in texts))

    def generators(self) -> "tuple[torch.Generator, ...]":
        """Return the generators of the CPU and of the GPU. A module may draw from both."""
        return (*super().generators(), _of_gpu())


@cache
def _of_gpu() -> "torch.Generator":
    import torch

    torch.cuda.init()  # type: ignore[no-untyped-call]  # before this, torch has no generators of GPUs
    return torch.cuda.default_generators[torch.cuda.current_device()]
