"""Rotate images by multiples of 90 degrees, counter-clockwise."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedstrata.datasets.examples import Dataset, DatasetInfo, Examples, position_in_label
from fedstrata.errors import DataError, ExperimentError


def turned(examples: Examples, quarter_turns: int) -> Examples:
    """Return the examples with rotated images. The last two axes are height and width. Raises DataError for images of a
    map-style data set, which are read at each use.
    """
    if examples.is_drawn:
        raise DataError(
            "images of a map-style data set cannot be rotated here; remove rotation and data.orientations, and rotate "
            "them in the data set"
        )
    return examples.with_inputs(np.ascontiguousarray(np.rot90(examples.stored, quarter_turns, axes=(-2, -1))))


def check_rotation(degrees: int, input_shape: tuple[int, ...], key: str) -> None:
    """Raise ExperimentError if examples of this shape cannot be rotated by these degrees. `key` is the name of the
    setting.
    """
    if len(input_shape) not in {2, 3}:
        raise ExperimentError(
            f"{key}: only images of shape (height, width) or (channels, height, width) can be rotated, "
            f"and the data set's examples have shape {input_shape}; remove {key}"
        )
    height, width = input_shape[-2:]
    if degrees % 180 and height != width:
        raise ExperimentError(
            f"{key}: images of {height} x {width} rotated by {degrees} degrees have another shape; "
            f"choose 180, or remove {key}"
        )


def oriented_info(info: DatasetInfo, orientations: Sequence[int]) -> DatasetInfo:
    """Return the shape and the number of classes of a data set after `in_orientations`. Raises ExperimentError if its
    examples cannot be rotated.
    """
    for degrees in orientations:
        check_rotation(degrees, info.input_shape, "data.orientations")
    return replace(info, num_classes=info.num_classes * len(orientations))


def in_orientations(dataset: Dataset, orientations: Sequence[int]) -> Dataset:
    """Divide the images of each label evenly among the orientations, and rotate them. Return the new data set.

    Each image is used in one orientation only. Different orientations have different labels. If there are C classes,
    label y in the n-th orientation, counted from 0, becomes n·C + y.
    """
    classes = dataset.num_classes
    train, test = (_oriented(part, classes, orientations) for part in (dataset.train, dataset.test))
    return Dataset(train=train, test=test, num_classes=classes * len(orientations))


def _oriented(examples: Examples, classes: int, orientations: Sequence[int]) -> Examples:
    turn = position_in_label(examples.labels) % len(orientations)
    values = turned(examples, 0).stored.copy()
    for number, degrees in enumerate(orientations):
        here = np.flatnonzero(turn == number)
        values[here] = turned(examples.part(here), degrees // 90).stored
    return examples.with_inputs(values).with_labels(examples.labels + classes * turn)
