"""The changes of a group to its devices' examples: rotated images (covariate shift) or renamed labels (concept
shift).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets import Examples
from fedstrata.datasets.turning import turned


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
