"""The layout of a model in one flat float32 vector: the names, shapes and order of its tensors.

Code that moves or adds weights uses the flat vector. The layout says where in this vector each tensor is.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

Flat = NDArray[np.float32]
SMALL_BYTES = 256 << 10  # a payload up to this size is sent in one message with its header


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Hold one tensor's name and shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Say where each tensor is in a flat vector. The tensors follow each other in their order, without gaps."""

    tensors: tuple[TensorSpec, ...]
    starts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    size: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        starts, position = [], 0
        for tensor in self.tensors:
            starts.append(position)
            position += tensor.size
        object.__setattr__(self, "starts", tuple(starts))
        object.__setattr__(self, "size", position)

    @classmethod
    def of(cls, shapes: Mapping[str, Iterable[int]]) -> Self:
        """Return the layout of tensors that are given as shapes by name. The layout keeps the order of the mapping."""
        return cls(tuple(TensorSpec(name=name, shape=tuple(shape)) for name, shape in shapes.items()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.tensors)

    @property
    def float32_bytes(self) -> int:
        """The number of bytes of the flat vector in float32. Files use float32, and so do links without another
        encoding.
        """
        return 4 * self.size

    @property
    def is_small(self) -> bool:
        """Return whether the flat vector is so small that a server keeps it in memory. Servers keep larger vectors only
        in files.
        """
        return self.float32_bytes <= SMALL_BYTES

    def select(self, names: Iterable[str]) -> "Layout":
        """Return the layout of some of the tensors, in this layout's order."""
        wanted = set(names)
        return Layout(tuple(tensor for tensor in self.tensors if tensor.name in wanted))

    def views(self, flat: Flat) -> dict[str, Flat]:
        """Return the tensors of a flat vector by name, as views."""
        return {
            tensor.name: flat[start : start + tensor.size].reshape(tensor.shape)
            for tensor, start in zip(self.tensors, self.starts, strict=True)
        }

    def flatten(self, tensors: Mapping[str, NDArray[np.float32]]) -> Flat:
        """Return the flat vector of named tensors, shape (size,)."""
        flat = np.empty(self.size, np.float32)
        for name, view in self.views(flat).items():
            view[...] = tensors[name]
        return flat

    def slices_of(self, part: "Layout") -> list[slice]:
        """Return the slices of this layout's flat vector that hold the tensors of `part`. Adjacent tensors share one
        slice.
        """
        places = {t.name: slice(s, s + t.size) for t, s in zip(self.tensors, self.starts, strict=True)}
        joined: list[slice] = []
        for name in part.names:
            place = places[name]
            if joined and joined[-1].stop == place.start:
                joined[-1] = slice(joined[-1].start, place.stop)
            else:
                joined.append(place)
        return joined


def taken(whole: Flat, places: Sequence[slice]) -> Flat:
    """Return one vector that joins some ranges of a vector. If the only range is the whole vector, return the vector
    itself, not a copy.
    """
    if len(places) == 1 and places[0] == slice(0, len(whole)):
        return whole
    return np.concatenate([np.empty(0, np.float32), *(whole[place] for place in places)])
