"""The examples of a data set, in memory or in a mapped file. They are checked when the object is constructed."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets.rows import COMPARED, Rows, targets_of, unmasked
from fedstrata.errors import DataError

Indices = NDArray[np.int64]
Array = NDArray[Any]
PIXEL_SCALE = 255
NO_LABEL = -100  # in a target with several values: a value to ignore, as in torch's cross_entropy


class Examples:
    """Hold examples: inputs, targets if there are any, and further arrays of the same length.

    Raises DataError if an array has another shape, type or value than described here. Memory-mapped arrays stay in
    their files.

    Args:
        inputs: Inputs of shape (n, *input_shape): float32, int64 (tokens, for example), or uint8. Values of uint8 are
            pixels. They are stored as bytes, and `take` scales 255 to 1.0.
        labels: Labels from 0 up, int64 of shape (n,): the targets of a classification.
        targets: Targets in place of labels, float32 or int64 of shape (n, ...).
        more: Further inputs by name, float32 or int64 of shape (n, ...). A model gets them by keyword.
        columns: Discrete facts by name, such as the user of each example: int64 of shape (n,), from 0 up.
    """

    def __init__(
        self,
        *,
        inputs: Array | Rows,
        labels: NDArray[np.int64] | None = None,
        targets: Array | None = None,
        more: Mapping[str, Array] | None = None,
        columns: Mapping[str, NDArray[np.int64]] | None = None,
    ) -> None:
        labels, targets = unmasked("labels", labels), unmasked("targets", targets)
        if labels is not None:
            if targets is not None:
                raise DataError(
                    "both labels and targets are given; labels are the targets of a classification: give one"
                )
            _check_discrete("labels", labels)
        self.stored: Final[Any] = unmasked("inputs", inputs)
        self.targets: Final[Array | None] = labels if targets is None else targets
        self.more: Final[Mapping[str, Array]] = {
            name: unmasked(f"input {name}", array) for name, array in (more or {}).items()
        }
        self.columns: Final[Mapping[str, NDArray[np.int64]]] = {
            name: unmasked(f"column {name}", array) for name, array in (columns or {}).items()
        }
        self._check()

    @classmethod
    def of_items(cls, source: Any, *, columns: Mapping[str, NDArray[np.int64]] | None = None) -> "Examples":
        """Return the examples of a map-style data set of PyTorch. Each item is a pair of input and target.

        Inputs are read when they are needed. In training, the transforms of the data set may draw from the global
        generators of torch, NumPy and Python. For each item, these generators are seeded with seed, device, round,
        epoch and example. Targets come from the attribute `targets` of the data set. If this attribute is missing, or
        differs from the items' targets, each item is read once for its target. A target must not change between
        readings.
        """
        targets = targets_of(source)
        rows = Rows(source, targets)
        if targets.dtype == np.int64 and targets.ndim == 1:
            return cls(inputs=rows, labels=targets, columns=columns)
        return cls(inputs=rows, targets=targets, columns=columns)

    def _check(self) -> None:
        _check_kind("inputs", self.stored, (np.float32, np.int64, np.uint8))
        if self.stored.ndim < 2:
            raise DataError(f"inputs must have shape (n, ...), not {self.stored.shape}; reshape a column to (n, 1)")
        _check_finite("inputs", self.stored)
        others = {"targets": self.targets} if self.targets is not None else {}
        others |= {f"input {name}": array for name, array in self.more.items()}
        for name, array in others.items():
            _check_kind(name, array, (np.float32, np.int64))
            _check_finite(name, array)
        for name, array in self.columns.items():
            _check_discrete(f"column {name}", array)
        for name, array in {**others, **self.columns}.items():
            if array.shape[:1] != (len(self),):
                what = "labels" if name == "targets" and self.has_labels else name
                raise DataError(
                    f"{what} must have one row for each of the {len(self)} inputs; the shape is {array.shape}"
                )

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        shape: tuple[int, ...] = self.stored.shape[1:]
        return shape

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one target. It is () for labels, and for examples without targets."""
        return () if self.targets is None else self.targets.shape[1:]

    @property
    def scale(self) -> int | None:
        """The number by which `stored` is divided to get `inputs`. None if `inputs` is the same as `stored`."""
        return PIXEL_SCALE if self.stored.dtype == np.uint8 else None

    @property
    def is_drawn(self) -> bool:
        """Return whether inputs are read each time that they are needed, possibly with random changes."""
        return isinstance(self.stored, Rows)

    @property
    def inputs(self) -> Array:
        """All inputs, float32 or int64 of shape (n, *input_shape). Each use scales uint8 again: prefer `take`."""
        stored: Array = self.stored[np.arange(len(self))] if self.is_drawn else self.stored
        return np.divide(stored, PIXEL_SCALE, dtype=np.float32) if self.scale else stored

    @property
    def has_labels(self) -> bool:
        """Return whether the targets are labels."""
        return self.targets is not None and self.targets.dtype == np.int64 and self.targets.ndim == 1

    @property
    def labels(self) -> NDArray[np.int64]:
        """Labels, int64 of shape (n,). Raises DataError if the targets are not labels."""
        if self.targets is None or not self.has_labels:
            found = "no targets" if self.targets is None else f"targets of {self.targets.dtype}, {self.target_shape}"
            raise DataError(
                f"the method or the partition needs labels, and these examples have {found}; choose a method that "
                "needs no labels, or name a column in partition.by"
            )
        return self.targets

    def column(self, name: str | None) -> NDArray[np.int64]:
        """Return a column, or the labels if the name is None. Raises DataError if there is no column of this name."""
        if name is None:
            return self.labels
        if name not in self.columns:
            known = f"; they have {', '.join(sorted(self.columns))}" if self.columns else " and no other column"
            raise DataError(
                f"the data have no column {name}{known}: name it in data.columns, or add it to columns of Examples"
            )
        return self.columns[name]

    def take(self, indices: Indices) -> "Examples":
        """Return the examples at these indices, in this order, with scaled inputs."""
        return self._with_rows(self.stored[indices], indices).scaled()

    def part(self, indices: Indices) -> "Examples":
        """Return a copy of the examples at these indices, in this order. Inputs of uint8 stay uint8."""
        stored = self.stored.part(indices) if isinstance(self.stored, Rows) else self.stored[indices]
        return self._with_rows(stored, indices)

    def drawn(self, indices: Indices, address: Sequence[int], epochs: Indices) -> "Examples":
        """Return the examples at these indices for training, like `take`. A map-style data set may change them at
        random. The changes depend only on `address` (numbers that identify the training), epoch and example.
        """
        if not isinstance(self.stored, Rows):
            return self.take(indices)
        addresses = [[*address, int(epoch), int(index)] for epoch, index in zip(epochs, indices, strict=True)]
        return self._with_rows(self.stored.drawn(indices, addresses), indices).scaled()

    def _with_rows(self, stored: Any, indices: Indices) -> "Examples":
        return Examples(
            inputs=stored,
            targets=None if self.targets is None else self.targets[indices],
            more={name: array[indices] for name, array in self.more.items()},
            columns={name: array[indices] for name, array in self.columns.items()},
        )

    def scaled(self) -> "Examples":
        """Return the same examples, with uint8 inputs scaled to [0, 1]."""
        return self.with_inputs(self.inputs) if self.scale else self

    def with_inputs(self, inputs: Array) -> "Examples":
        """Return the same examples with other inputs."""
        return Examples(inputs=inputs, targets=self.targets, more=self.more, columns=self.columns)

    def with_labels(self, labels: NDArray[np.int64]) -> "Examples":
        """Return the same examples with other labels."""
        return Examples(inputs=self.stored, labels=labels, more=self.more, columns=self.columns)


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """Hold the facts of a data set that a model needs: shapes and the number of classes."""

    input_shape: tuple[int, ...]
    """Shape of one example."""
    num_classes: int = 0
    """Number of labels, or of values of a whole-number target. 0 if targets are not whole numbers."""
    target_shape: tuple[int, ...] = ()
    """Shape of one target: () for labels."""

    @property
    def outputs(self) -> int:
        """Number of outputs of a built-in model: one per class or, without classes, one per element of a target."""
        return self.num_classes or math.prod(self.target_shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Hold a data set. If `data.name` names a user's function, the function returns such an object. Every process must
    get the same data.
    """

    train: Examples
    """Examples to train on."""
    test: Examples
    """Examples to measure on. If the partition has a `test_share`, there may be none."""
    num_classes: int = 0
    """Number of labels; labels are 0 to num_classes − 1. 0 if targets are not whole numbers."""
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the values 0, 1, … of each column. If a column is missing here, its values are named by their
    numbers."""
    input_names: Sequence[str] = ()
    """Names of the columns or arrays that are the input, if they have names."""
    target_names: Sequence[str] = ()
    """Names of the columns or the array that are the target, if they have names."""

    def __post_init__(self) -> None:
        for name, examples in (("train", self.train), ("test", self.test)):
            if not isinstance(examples, Examples):
                raise DataError(
                    f"{name} must be Examples, not {type(examples).__name__}; put the inputs and labels into "
                    "NumPy arrays, and use Examples(inputs=..., labels=...) or Examples.of_items(data_set)"
                )
        if not isinstance(self.names, Mapping) or any(isinstance(each, str | Set) for each in self.names.values()):
            raise DataError(
                f"names must have a sequence of names for each column, not {self.names!r:.80}; give, for instance, "
                "names={'site': ['north', 'south']}"
            )
        if not isinstance(self.num_classes, int | np.integer):
            raise DataError(
                f"num_classes must be the number of labels, not {self.num_classes!r:.80}; leave it out if targets are "
                "not whole numbers"
            )
        if self.train.input_shape != self.test.input_shape:
            raise DataError(
                f"training examples have shape {self.train.input_shape} and test examples "
                f"{self.test.input_shape}; make the shapes equal"
            )
        trained, tested = _described(self.train), _described(self.test)
        if trained != tested:
            raise DataError(f"training examples have {trained}, and test examples have {tested}; make them alike")
        for bytes_, others in ((self.train, self.test), (self.test, self.train)):
            if bytes_.scale and not others.scale and not _is_scaled(others.stored):
                raise DataError(
                    "training or test inputs are bytes (uint8), which are scaled from 0…255 to 0…1, but others have "
                    "values beyond 0…1; give both the same type"
                )
        for part, examples in (("training", self.train), ("test", self.test)):
            if not len(examples) and part == "training":
                raise DataError("the training data has no examples; at least one is needed")
            self._check_targets(part, examples)

    def _check_targets(self, part: str, examples: Examples) -> None:
        targets = examples.targets
        if self.num_classes and targets is not None and targets.dtype != np.int64 and targets.ndim == 1:
            raise DataError(
                f"the {part} data has targets of {targets.dtype}, and num_classes is {self.num_classes}; make labels "
                "int64, or leave out num_classes"
            )
        if targets is None or targets.dtype != np.int64 or not targets.size:
            return
        word = "label" if examples.has_labels else "target"
        if not self.num_classes:
            raise DataError(
                f"{word}s are whole numbers, and num_classes is missing; give it, or make the targets float32"
            )
        least = 0 if examples.has_labels else NO_LABEL
        wrong = targets.max() if targets.max() >= self.num_classes else targets.min()
        if wrong >= self.num_classes or wrong < least:
            raise DataError(
                f"the {part} data holds {word} {wrong}; with num_classes {self.num_classes}, "
                f"{word}s must be from 0 to {self.num_classes - 1}"
            )

    @property
    def info(self) -> DatasetInfo:
        """The facts that a model needs."""
        return DatasetInfo(
            input_shape=self.train.input_shape, num_classes=self.num_classes, target_shape=self.train.target_shape
        )

    def values(self, column: str | None) -> Sequence[str]:
        """Return the names of a column's values. If the column is None, return the names of the labels. Raises
        DataError like `Examples.column`, and if two values have the same name, or a value has no name.
        """
        parts = self.train.column(column), self.test.column(column)
        highest = max(int(part.max(initial=-1)) for part in parts) if column is not None else self.num_classes - 1
        names = self.names.get(column or "", [str(value) for value in range(highest + 1)])
        if len(set(names)) != len(names) or len(names) <= highest:
            raise DataError(
                f"names of Dataset has {list(names)!r:.80} for column {column}; give each value from 0 to {highest} a "
                "name of its own"
            )
        return names


def position_in_label(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each example, the number of earlier examples with the same label."""
    positions = np.empty_like(labels)
    for label in np.unique(labels):
        positions[labels == label] = np.arange(np.count_nonzero(labels == label))
    return positions


def _is_scaled(inputs: Any) -> bool:
    """Return whether all inputs are between 0 and 1. If the inputs are not in memory, only some rows are checked."""
    if isinstance(inputs, np.memmap | Rows):
        inputs = np.asarray(inputs[np.arange(0, len(inputs), max(1, len(inputs) // COMPARED))])
    return not inputs.size or bool(inputs.min() >= 0 and inputs.max() <= 1)


def _described(examples: Examples) -> str:
    """Return a text with the properties that training and test examples of a data set must have in common, besides the
    shape of their inputs.
    """
    targets = "no targets" if examples.targets is None else f"targets of {_kind(examples.targets)}"
    more = [f"input {name} of {_kind(array)}" for name, array in sorted(examples.more.items())]
    columns = [f"column {name}" for name in sorted(examples.columns)]
    inputs = "whole-number inputs" if examples.stored.dtype == np.int64 else "inputs"
    return ", ".join([inputs, targets, *more, *columns])


def _kind(array: Array) -> str:
    return f"{array.dtype} and shape {array.shape[1:]}" if array.ndim > 1 else str(array.dtype)


def _check_kind(name: str, array: Any, kinds: tuple[type[np.generic], ...]) -> None:
    if not isinstance(array, np.ndarray | Rows) or array.dtype not in kinds:
        found = array.dtype if isinstance(array, np.ndarray | Rows) else type(array).__name__
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise DataError(f"{name} must be a NumPy array of {wanted}, not {found}; convert it")


def _check_finite(name: str, array: Array) -> None:
    """Raise DataError if an array contains NaN or Inf. Arrays in a file are checked later, when their rows are taken.

    Only the minimum and the maximum are checked. They show Inf, and both are NaN if the array contains NaN. This needs
    less memory than a check of each element.
    """
    if array.dtype != np.float32 or not array.size or isinstance(array, np.memmap):
        return
    if not np.isfinite([array.min(), array.max()]).all():
        raise DataError(f"{name} contain NaN or Inf; every value must be a finite number")


def _check_discrete(name: str, array: Any) -> None:
    _check_kind(name, array, (np.int64,))
    if array.ndim != 1:
        raise DataError(f"{name} must have shape (n,), not {array.shape}")
    if array.size and array.min() < 0:
        raise DataError(f"{name} must have values of 0 or more, not {array.min()}")
