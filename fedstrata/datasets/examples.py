"""Labelled examples in memory, checked when made."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import DataError

Indices = NDArray[np.int64]
PIXEL_SCALE = 255


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """Hold labelled examples. Raises DataError if an array is not as the field says."""

    inputs: NDArray[np.float32]
    """Inputs, float32 of shape (n, *input_shape)."""
    labels: NDArray[np.int64]
    """Labels, int64 of shape (n,)."""
    scale: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        _check(self.inputs, self.labels, dtype=np.float32)
        # minimum and maximum pass NaN on, and need no mask as large as the inputs
        if self.inputs.size and not np.isfinite([self.inputs.min(), self.inputs.max()]).all():
            raise DataError("inputs hold NaN or Inf; every value must be a finite number")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.inputs.shape[1:]

    @property
    def stored(self) -> NDArray[np.float32]:
        """Inputs as they are stored: the same as `inputs`."""
        return self.inputs

    def take(self, indices: Indices) -> "Examples":
        """Return a copy of the examples at these indices, in this order."""
        return Examples(inputs=self.inputs[indices], labels=self.labels[indices])

    def part(self, indices: Indices) -> "Examples":
        """Do the same as `take`."""
        return self.take(indices)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pixels:
    """Hold labelled images as bytes, in a quarter of the memory."""

    values: NDArray[np.uint8]
    """Pixels, uint8 of shape (n, *input_shape); 255 stands for 1.0."""
    labels: NDArray[np.int64]
    """Labels, int64 of shape (n,)."""
    scale: ClassVar[int | None] = PIXEL_SCALE

    def __post_init__(self) -> None:
        _check(self.values, self.labels, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.values.shape[1:]

    @property
    def inputs(self) -> NDArray[np.float32]:
        """All examples scaled to [0, 1]. Each access computes them again, so prefer `take`."""
        return _scaled(self.values)

    @property
    def stored(self) -> NDArray[np.uint8]:
        """Values as they are stored. Divided by `scale` they are `inputs`."""
        return self.values

    def take(self, indices: Indices) -> Examples:
        """Return the examples at these indices, in this order, scaled to [0, 1]."""
        return Examples(inputs=_scaled(self.values[indices]), labels=self.labels[indices])

    def part(self, indices: Indices) -> "Pixels":
        """Return a copy of the examples at these indices, in this order, still as bytes."""
        return Pixels(values=self.values[indices], labels=self.labels[indices])


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The facts of a data set that a model needs: the shape of one example and the number of labels."""

    input_shape: tuple[int, ...]
    num_classes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Hold a data set. Own code returns one from `load(settings)`. The data must be the same in every process."""

    train: Examples | Pixels
    """Examples to train on."""
    test: Examples | Pixels
    """Examples to measure on."""
    num_classes: int
    """Number of labels; labels are 0 to num_classes − 1."""

    def __post_init__(self) -> None:
        for name, examples in (("train", self.train), ("test", self.test)):
            if not isinstance(examples, Examples | Pixels):
                raise DataError(
                    f"{name} must be Examples or Pixels, not {type(examples).__name__}; put the inputs and labels into "
                    "NumPy arrays and make Examples(inputs=..., labels=...) of them"
                )
        if self.train.input_shape != self.test.input_shape:
            raise DataError(
                f"training examples have shape {self.train.input_shape} and test examples "
                f"{self.test.input_shape}; they must be alike"
            )
        for part, examples in (("training", self.train), ("test", self.test)):
            if not len(examples):
                raise DataError(f"the {part} data holds no examples; it needs one at least")
            if examples.labels.max() >= self.num_classes:
                raise DataError(
                    f"the {part} data holds label {examples.labels.max()}; with {self.num_classes} classes, "
                    f"labels go from 0 to {self.num_classes - 1}"
                )

    @property
    def info(self) -> DatasetInfo:
        """Shape of an example and number of labels."""
        return DatasetInfo(input_shape=self.train.input_shape, num_classes=self.num_classes)


def position_in_label(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each example, how many before it have the same label."""
    positions = np.empty_like(labels)
    for label in np.unique(labels):
        positions[labels == label] = np.arange(np.count_nonzero(labels == label))
    return positions


def _scaled(values: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.divide(values, PIXEL_SCALE, dtype=np.float32)


def _check(inputs: NDArray[Any], labels: NDArray[Any], *, dtype: type[np.generic]) -> None:
    for name, array, wanted in (("inputs", inputs, dtype), ("labels", labels, np.int64)):
        if not isinstance(array, np.ndarray) or array.dtype != wanted:
            found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise DataError(f"{name} must be an array of {wanted.__name__}, not {found}")
    if labels.ndim != 1 or inputs.ndim < 2 or len(inputs) != len(labels):
        raise DataError(
            f"inputs have shape (n, ...) and labels shape (n,); these have {inputs.shape} and {labels.shape}"
        )
    if labels.size and labels.min() < 0:
        raise DataError(f"labels go from 0 up, and one is {labels.min()}")
