"""What is computed where, by tensors on torch's device `meta`, which have shapes and no values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

import device.stacked.corrected_steps
import device.training
from device.training import Trainer
from fedstrata.models.module_source import ModuleSource
from fedstrata.tensors.processor import Processor

META = Processor("meta")
aten = torch.ops.aten
MOVES = {aten.lift_fresh.default, aten.detach.default, aten._to_copy.default, aten.copy_.default}  # of NumPy values


class Placement(TorchDispatchMode):
    """Note what is computed elsewhere than on `meta`, and how often tensors there are read. Each value is read as 1."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.elsewhere: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # in inference mode, calls come in one piece
                return func.decompose(*args, **kwargs)
        if isinstance(first := next(iter(args), None), torch.Tensor) and first.is_meta:
            if func is aten._local_scalar_dense.default:
                self.reads += 1
                return torch.ones((), dtype=first.dtype).item()
            if func is aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
                self.reads += 1
                return torch.ones(first.shape, dtype=kwargs.get("dtype") or first.dtype)
            if func is aten.bincount.default:  # torch does not know its shape
                return torch.ones(args[2], dtype=torch.int64, device="meta")
        found = func(*args, **kwargs)
        used = [each for each in tree_leaves((args, kwargs, found)) if isinstance(each, torch.Tensor)]
        if func not in MOVES and not all(tensor.is_meta for tensor in used):
            self.elsewhere.add(str(func))
        return found


@contextmanager
def placement(monkeypatch: pytest.MonkeyPatch) -> Iterator[Placement]:
    """Note what a block computes where, but for what belongs on the host: trials of corrections, and drawing the
    initial values of modules.
    """
    for module in (device.training, device.stacked.corrected_steps):
        monkeypatch.setattr(module, "keeps_zeros", _unnoted(module.keeps_zeros))
    monkeypatch.setattr(ModuleSource, "module", _unnoted(ModuleSource.module))
    with Placement() as noted:
        yield noted


def _unnoted(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any) -> Any:
        with _disable_current_modes():
            return function(*args)

    return called


class HereAndNow:
    """Does the arithmetic of devices at once, on the thread that asks."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @contextmanager
    def listening(self, group: str) -> Iterator[None]:
        yield

    async def train(self, job: Any, group: str) -> Any:
        return self._trainer.train([job])[0]

    async def evaluate(self, job: Any, group: str) -> Any:
        return self._trainer.evaluate([job])[0]

    async def compute(self, work: Callable[[], Any]) -> Any:
        return work()
