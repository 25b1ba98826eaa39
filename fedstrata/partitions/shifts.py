"""The changes of a group to its devices' examples: rotated images (covariate shift) or renamed labels (concept
shift).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.datasets.turning import check_rotation, turned
from fedstrata.errors import ExperimentError
from fedstrata.experiment.partition import Group
from fedstrata.partitions.stock import LABEL_PERMUTATION


@dataclass(frozen=True, kw_only=True, eq=False)
class Shift:
    """Describe how a group changes its devices' examples.

    `quarter_turns` is the number of rotations by 90 degrees, counter-clockwise. If labels change, `new_labels` has the
    new name of each label, shape (num_classes,).
    """

    quarter_turns: int = 0
    new_labels: NDArray[np.int64] | None = None

    @property
    def changes(self) -> bool:
        """Return whether the shift changes examples."""
        return bool(self.quarter_turns) or self.new_labels is not None

    def apply(self, examples: Examples) -> Examples:
        """Return the examples with rotated images and renamed labels."""
        if self.quarter_turns:
            examples = turned(examples, self.quarter_turns)
        if self.new_labels is not None:
            examples = examples.with_labels(self.new_labels[examples.labels])
        return examples


def shift_of(group: Group, info: DatasetInfo, *, seed: int, where: str) -> Shift:
    """Return the shift of a group.

    Args:
        group: the settings of the group.
        info: shape and classes of the data set.
        seed: the run's seed. If the group's `label_permutation` is a number, this number and the seed determine the
            permutation. So groups with the same number have the same permutation.
        where: the group's place in the experiment file, for the error.

    Raises:
        ExperimentError: the data are not images that can be rotated, or the permutation does not have the data set's
            number of labels.
    """
    if group.rotation:
        check_rotation(group.rotation, info.input_shape, f"{where}.rotation")
    return Shift(quarter_turns=group.rotation // 90, new_labels=_new_labels(group, info.num_classes, seed, where))


def _new_labels(group: Group, num_classes: int, seed: int, where: str) -> NDArray[np.int64] | None:
    asked = group.label_permutation
    if asked is None:
        return None
    if isinstance(asked, int):
        return np.random.default_rng([seed, LABEL_PERMUTATION, asked]).permutation(num_classes)
    if len(asked) != num_classes:
        raise ExperimentError(
            f"{where}.label_permutation lists {len(asked)} labels, but the data set has {num_classes}; "
            f"list each of 0 to {num_classes - 1} once"
        )
    return np.array(asked, np.int64)
