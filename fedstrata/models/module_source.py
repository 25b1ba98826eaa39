"""Construct torch modules with initial values that depend only on a seed."""

import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import PluginError
from fedstrata.models.module_tensors import Kinds, ModuleTensors
from fedstrata.tensors import Flat, Layout
from fedstrata.tensors.processor import CPU, Processor

if TYPE_CHECKING:
    import torch

turn = threading.RLock()  # threads share torch's generator, filters of warnings, and a module's buffers and mode


@dataclass(frozen=True, kw_only=True)
class ModuleSource:
    """Construct the modules of a model."""

    factory: "Callable[[], torch.nn.Module]"  # draws from torch's generator only
    kinds: Kinds

    def outline(self) -> "torch.nn.Module":
        """Return a module that is used only for its names and shapes. If possible, its tensors need no memory."""
        import torch

        try:  # torch warns if a module loads its values into tensors without memory
            with turn, torch.device("meta"), warnings.catch_warnings(action="ignore"):
                return self._drawn(seed=0)
        except Exception:  # the module needs values of tensors, or has a fault that the next line raises again
            return self._drawn(seed=0)

    def module(self, seed: int) -> "torch.nn.Module":
        """Construct a module with initial values drawn from `seed`. Tensors in the file of weights get the file's
        values.
        """
        import torch

        module = self._drawn(seed)
        tensors = ModuleTensors(module, self.kinds).all
        with torch.no_grad():
            for name, values in self._in_file(tensors):
                tensors[name].copy_(torch.from_numpy(values))
        return module

    def initial(self, seed: int, layout: Layout) -> Flat:
        """Return the initial weights of the model, in this layout. If the file of weights has all these weights, no
        module is constructed.
        """
        if self.kinds.weights is not None and self.kinds.weights.has(layout.names):
            flat = np.empty(layout.size, np.float32)
        else:
            flat = ModuleTensors(self._drawn(seed), self.kinds).flat()
        views = layout.views(flat)
        with np.errstate(over="ignore"):  # too large float64 values become infinite, as in torch
            for name, values in self._in_file(layout.names):
                views[name][...] = values
        return flat

    def _in_file(self, names: Collection[str]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the named tensors that are in the file of weights. One tensor at a time is mapped into memory."""
        return iter(()) if self.kinds.weights is None else self.kinds.weights.values(names)

    def _drawn(self, seed: int) -> "torch.nn.Module":
        """Construct a module with all values drawn from `seed`. This happens on one thread, because the values of
        `orthogonal_`, for example, depend on the number of threads.
        """
        import torch

        with drawing(seed):
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                module = self.factory()
            finally:
                torch.set_num_threads(threads)
        if not isinstance(module, torch.nn.Module):
            raise PluginError(f"from_module needs a function that makes a torch.nn.Module, not {module!r:.80}")
        return module


@contextmanager
def drawing(seed: int, processor: Processor = CPU) -> Iterator[None]:
    """Run a block with the processor's random generators set to `seed`. Restore the generators afterwards. Only one
    thread at a time runs such a block.
    """
    # This takes 2 µs on the CPU. torch.random.fork_rng and torch.manual_seed look for GPUs and take 100 µs.
    generators = processor.generators()
    with turn:
        before = [generator.get_state() for generator in generators]
        for generator in generators:
            generator.manual_seed(seed)
        try:
            yield
        finally:
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)
