"""The coordinate-wise median of the updates.

Dong Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018, Definition 1.
"""

import numpy as np

from fedstrata.rules.base import AllUpdates, Weights
from fedstrata.tensors import Flat


class Median(AllUpdates):
    """Take the median of each element over the children. Each child counts once, so a false number of examples changes
    nothing. With an even number of children, the median is the mean of the two middle values.
    """

    def combine(self, updates: Flat, weights: Weights) -> Flat:
        combined: Flat = np.median(updates, axis=0)
        return combined

    def withstands(self, children: int) -> int:
        return (children - 1) // 2
