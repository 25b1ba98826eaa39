"""The inputs of a map-style data set of PyTorch. They are read when they are needed, possibly with random changes."""

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import DataError
from fedstrata.plugins import or_failed

Indices = NDArray[np.int64]
Array = NDArray[Any]
MEASURED = 0x726F7773  # "rows": address of the draws outside training, so that they are always the same


class Rows:
    """Hold the inputs of a map-style data set, with the interface of an array. Each item of the data set is a pair of
    input and target.

    The transforms of the data set may draw random numbers from torch, NumPy and Python. Before each item is read, the
    three generators are seeded with an address, a list of numbers. Afterwards they are restored. So an item is the same
    in every process.
    """

    def __init__(self, source: Any, indexes: Indices | None = None) -> None:
        if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
            raise DataError(f"a {type(source).__name__} has no numbered items; give a map-style data set of PyTorch")
        self._source = source
        self._indexes = np.arange(len(source)) if indexes is None else indexes
        first = self._read(0, [MEASURED]) if len(source) else np.empty(0, np.float32)
        self.dtype = first.dtype
        self.shape = (len(self._indexes), *first.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Return 0: no values are in memory that could be checked. Each value is checked when it is read."""
        return 0

    def __len__(self) -> int:
        return len(self._indexes)

    def part(self, indices: Indices) -> "Rows":
        """Return the rows at these indices, without reading them."""
        return Rows(self._source, self._indexes[indices])

    def __getitem__(self, indices: Indices) -> Array:
        return self.drawn(indices, [[MEASURED, int(self._indexes[place])] for place in np.arange(len(self))[indices]])

    def drawn(self, indices: Indices, addresses: Sequence[Sequence[int]]) -> Array:
        """Return the rows at these indices. Before each row is read, the random generators are seeded with the address
        of this row.
        """
        read = [self._read(int(self._indexes[index]), where) for index, where in zip(indices, addresses, strict=True)]
        if any(row.shape != self.shape[1:] or row.dtype != self.dtype for row in read):
            raise DataError(
                f"items of the data set have different shapes or types, {self.shape[1:]} and others; pad them"
            )
        return np.stack(read) if read else np.empty((0, *self.shape[1:]), self.dtype)

    def targets(self) -> Array:
        """Return the target of each item. It comes from the attribute `targets` of the data set or, without this
        attribute, from the second part of the item.
        """
        if (known := getattr(self._source, "targets", None)) is not None:
            return np.asarray(known)
        return np.stack([np.asarray(self._item(index, [MEASURED])[1]) for index in range(len(self._source))])

    def _read(self, index: int, address: Sequence[int]) -> Array:
        return np.asarray(self._item(index, address)[0])

    def _item(self, index: int, address: Sequence[int]) -> tuple[Any, Any]:
        name = type(self._source).__name__
        with or_failed(f"data set {name}: reading item {index} failed with", self._source), _drawing(address):
            item = self._source[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"item {index} of {name} is a {type(item).__name__}; return a pair of input and target")
        return item[0], item[1]


@contextmanager
def _drawing(address: Sequence[int]) -> Iterator[None]:
    """Run a block with the generators of torch, NumPy and Python seeded with an address. Restore the generators
    afterwards.
    """
    seeds = np.random.SeedSequence(list(address)).generate_state(3, np.uint32)
    python, numbers = random.getstate(), np.random.get_state()  # transforms draw from these generators
    torch = sys.modules.get("torch")  # if a data set draws from torch's generator, torch is loaded
    tensors = torch.default_generator.get_state() if torch else None
    random.seed(int(seeds[0]))
    np.random.seed(seeds[1])
    if torch:
        torch.default_generator.manual_seed(int(seeds[2]))
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
        if torch:
            torch.default_generator.set_state(tensors)
