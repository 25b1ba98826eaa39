"""Changes of devices' examples: the interface, and the changes of a group, which are rotated images (covariate shift)
or renamed labels (concept shift).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets import Examples
from fedstrata.datasets.turning import turned


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """Hold the place of a device's examples in the data set, so that a change can draw random numbers for each
    example.
    """

    indices: NDArray[np.int64]
    """The index of each example, in the training data or in the tests."""
    is_training_data: bool
    """True if the examples are from the training data, also if the device is tested on them."""


class Shift:
    """Change the examples of a device, for training and for tests."""

    @property
    def changes(self) -> bool:
        """Return whether the shift changes examples."""
        raise NotImplementedError

    def apply(self, examples: Examples, place: Place) -> Examples:
        """Return the changed examples, in the same order."""
        raise NotImplementedError

    def type_after(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """Return the NumPy type of inputs after the change. `stored` is their type before the change."""
        return stored


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupShift(Shift):
    """Describe how a group changes its devices' examples.

    `quarter_turns` is the number of rotations by 90 degrees, counter-clockwise. If labels change, `new_labels` has the
    new name of each label, shape (num_classes,).
    """

    quarter_turns: int = 0
    new_labels: NDArray[np.int64] | None = None

    @property
    def changes(self) -> bool:
        return bool(self.quarter_turns) or self.new_labels is not None

    def apply(self, examples: Examples, place: Place) -> Examples:
        """Return the examples with rotated images and renamed labels."""
        if self.quarter_turns:
            examples = turned(examples, self.quarter_turns)
        if self.new_labels is not None:
            examples = examples.with_labels(self.new_labels[examples.labels])
        return examples
