"""The weighted mean of updates that are clipped to a largest norm.

Ziteng Sun et al., "Can You Really Backdoor Federated Learning?", 2019, section 4.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from fedstrata.experiment.sections import RuleSettings
from fedstrata.rules.products import ByProducts, Numbers, Updates


class ClippedMean(ByProducts):
    """Take the weighted mean of the updates, each clipped to a largest norm. Weights (numbers of examples) are limited,
    too. So an attacker gains little from a false number.
    """

    class Options(RuleSettings):
        norm: PositiveFloat | None = None
        """Largest norm of an update; without this key the median of the norms in the round."""
        cap: float = Field(default=2.0, ge=1)
        """Largest weight of a child, as a multiple of the median of the children's weights."""

    options: Options

    def factors(self, updates: Updates) -> Numbers:
        longest = self.options.norm or _middle(updates.norms)
        weights = np.minimum(updates.weights, self.options.cap * _middle(updates.weights))
        shrunk = longest / np.maximum(updates.norms, longest) if longest else np.zeros(len(weights))
        factors: Numbers = shrunk * weights / weights.sum()
        return factors

    def withstands(self, children: int) -> int:
        return (children - 1) // 2


def _middle(values: NDArray[Any]) -> float:
    """Return the median. Of an even number of values, return the lower one of the two in the middle."""
    return float(np.sort(values)[(len(values) - 1) // 2])
