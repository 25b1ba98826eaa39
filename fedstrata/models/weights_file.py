"""Values of a module's tensors from the user's safetensors file. The file is mapped into memory, so only the parts in
use are read.

The file may have frozen tensors, and initial values of trained tensors. Its SHA-256 is part of the run's id.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import ExperimentError
from fedstrata.store.named_files import check_named

KEY = "model.weights"
MOST_HEADER_BYTES = 16 << 20
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind) for name, kind in (("F32", "<f4"), ("F64", "<f8"), ("F16", "<f2"), ("I64", "<i8"))
}


@dataclass(frozen=True, kw_only=True)
class WeightsFile:
    """Describe a safetensors file with weights, by its path and the SHA-256 of its bytes."""

    path: Path
    sha256: str

    def check(self, shapes: Mapping[str, tuple[int, ...]], needed: Collection[str]) -> None:
        """Check that the file has the SHA-256 that the experiment gives, and that all tensors in the file belong to the
        module.

        `shapes` has the shapes of the module's tensors. The file must have the tensors in `needed`.

        Raises:
            ExperimentError: the file fails a check, or cannot be read.
        """
        check_named(self.path, self.sha256, KEY)
        there = {name: shape for name, (_, shape, _) in self._entries().items()}
        for name, shape in there.items():
            if shapes.get(name) != shape:
                has = f"one of shape {list(shapes[name])}" if name in shapes else "no such tensor"
                raise ExperimentError(
                    f"{KEY}: {self.path} has a tensor {name} of shape {list(shape)}, and the module has {has}; use "
                    "weights of this module"
                )
        if missing := [name for name in needed if name not in there]:
            raise ExperimentError(
                f"{KEY}: {self.path} has no tensor {missing[0]}, which is frozen; use weights of this module, or "
                "remove the tensor from model.freeze"
            )

    def has(self, names: Collection[str]) -> bool:
        """Return whether the file has all these tensors."""
        return set(names) <= self._entries().keys()

    def values(self, names: Collection[str]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the named tensors that the file has, mapped into memory."""
        for name, (dtype, shape, start) in self._entries().items():
            size = math.prod(shape)
            if name in names and size:
                yield name, np.memmap(self.path, dtype, mode="c", offset=start, shape=(size,)).reshape(shape)

    def _entries(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]:
        """Return dtype, shape and position of each tensor in the file. Raises ExperimentError if the file is damaged,
        or is not a safetensors file.
        """
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(MOST_HEADER_BYTES, size - 8):
                raise ExperimentError(f"{KEY}: {self.path} is not a safetensors file; write it with safetensors.torch")
            text = file.read(length)
        try:
            header = dict(json.loads(text))
            header.pop("__metadata__", None)
            found = {}
            for name, entry in header.items():
                dtype, shape = DTYPES.get(entry["dtype"]), tuple(int(side) for side in entry["shape"])
                start, stop = (int(offset) for offset in entry["data_offsets"])
                if dtype is None:
                    raise ExperimentError(
                        f"{KEY}: {self.path} has {name} as {entry['dtype']}; write it as one of {', '.join(DTYPES)}"
                    )
                if start < 0 or stop - start != math.prod(shape) * dtype.itemsize or 8 + length + stop > size:
                    raise ExperimentError(
                        f"{KEY}: {self.path} is damaged: the place of {name} is wrong; write it again"
                    )
                found[str(name)] = (dtype, shape, 8 + length + start)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ExperimentError(f"{KEY}: the header of {self.path} is damaged; write it again") from None
        return found
