"""The inputs of a map-style data set of PyTorch. They are read when they are needed, possibly with random changes."""

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import DataError
from fedstrata.plugins import or_failed

Indices = NDArray[np.int64]
Array = NDArray[Any]
COMPARED = 50  # items that are read to see if the attribute `targets` has their targets
MEASURED = 0x726F7773  # "rows": address of the draws outside training, so that they are always the same


def unmasked(name: str, array: Any) -> Any:
    """Return a masked array as a plain array. Raises DataError if the mask hides a value, because the array would then
    contain an arbitrary number.
    """
    if not isinstance(array, np.ma.MaskedArray):
        return array
    if hidden := int(np.ma.getmaskarray(array).sum()):
        raise DataError(f"{name}: {hidden} values are masked; leave out their rows, or use array.filled(NUMBER)")
    return array.data


def as_array(name: str, values: Any) -> Array:
    """Return values as an array. Raises DataError for masked values, sparse tensors, tensors with a gradient, and lists
    of several lengths.
    """
    values = unmasked(name, values)
    try:
        return np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"{name} cannot be made a NumPy array: {' '.join(str(error).split())}") from None


class Rows:
    """Hold the inputs of a map-style data set, with the interface of an array. Each item of the data set is a pair of
    input and target.

    The transforms of the data set may draw random numbers from torch, NumPy and Python. Before each item is read, the
    three generators are seeded with an address, a list of numbers. Afterwards the state of the generators is restored.
    So an item is the same in every process.
    """

    def __init__(self, source: Any, targets: Array, indexes: Indices | None = None) -> None:
        """Hold the items of `source` at these indexes; without indexes, all items. `targets` has the target of each
        item of `source`. Reading an item raises DataError if the item has another target than `targets` says.
        """
        self._source: Final = source
        self._targets = targets
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
        """Return 0, because no values are in memory yet. Each value is checked when it is read."""
        return 0

    def __len__(self) -> int:
        return len(self._indexes)

    def held(self) -> Iterator[Array]:
        """Yield all attributes of the data set that are arrays or tensors. Tensors are yielded as arrays."""
        for value in vars(self._source).values():
            for each in value if isinstance(value, tuple) else [value]:
                if hasattr(each, "__array__") and hasattr(each, "nbytes"):
                    yield np.asarray(each)

    def part(self, indices: Indices) -> "Rows":
        """Return the rows at these indices, without reading them."""
        return Rows(self._source, self._targets, self._indexes[indices])

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

    def _read(self, index: int, address: Sequence[int]) -> Array:
        found, target = _item(self._source, index, address)
        known = self._targets[index]
        if _differs(target, known):
            raise DataError(
                f"item {index} of {type(self._source).__name__} has target {target!s:.40}, but an earlier reading or "
                f"the attribute targets gave {known!s:.40}; give each item the same target at each reading"
            )
        return found


def targets_of(source: Any) -> Array:
    """Return the target of each item of a map-style data set, as int64 if targets are whole numbers, else as float32.

    Targets come from the attribute `targets` of the data set, if the attribute agrees with a sample of the items. The
    sample has an item of each different target, for at most 50 targets, and 50 items at even distances. If the
    attribute is missing or differs, each item is read.
    """
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise DataError(f"a {type(source).__name__} has no numbered items; give a map-style data set of PyTorch")
    targets = _attribute(source)
    if targets is None:
        read = [_item(source, index, [MEASURED])[1] for index in range(len(source))]
        if len({target.shape for target in read}) > 1:
            raise DataError(f"targets of {type(source).__name__} have different shapes; make them equal")
        targets = np.stack(read) if read else np.empty(0, np.int64)
    return targets.astype(np.int64 if targets.dtype.kind in "iu" else np.float32)


def _attribute(source: Any) -> Array | None:
    """Return the attribute `targets` of a data set. If it is missing, or differs from the targets of the items that are
    compared, return None.
    """
    known, size = getattr(source, "targets", None), len(source)
    if known is None or callable(known):
        return None
    try:
        known = np.asarray(unmasked("targets", known))
    except ValueError:  # lists of several lengths
        return None
    if known.shape[:1] != (size,) or known.dtype.kind not in "iufb" or not size:
        return None
    firsts = np.unique(known, return_index=True)[1] if known.ndim == 1 else np.empty(0, np.int64)
    for index in {*firsts[:COMPARED].tolist(), *np.linspace(0, size - 1, COMPARED).astype(int).tolist()}:
        target = _item(source, index, [MEASURED])[1]
        if _differs(target, known[index]):
            return None
    return known


def _differs(target: Array, known: Array) -> bool:
    """Return whether a target differs from a known target. If the known target has a float type, such as float32, the
    target is first rounded to this type.
    """
    told = target.astype(known.dtype) if known.dtype.kind == "f" else target
    return not np.array_equal(told, known, equal_nan=known.dtype.kind == "f")


def _item(source: Any, index: int, address: Sequence[int]) -> tuple[Array, Array]:
    """Return the input and the target of an item as arrays."""
    name = type(source).__name__
    with or_failed(f"data set {name}: reading item {index} failed with", source), _drawing(address):
        item = source[index]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"item {index} of {name} is a {type(item).__name__}; return a pair of input and target")
    found, target = (
        as_array(f"{what} of item {index} of {name}", part)
        for what, part in zip(("input", "target"), item, strict=True)
    )
    if target.dtype.kind not in "iufb":
        raise DataError(f"item {index} of {name} has target {item[1]!r:.40}; a target is a number, or an array of them")
    return found, target


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
