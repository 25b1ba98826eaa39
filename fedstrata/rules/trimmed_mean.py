"""The coordinate-wise trimmed mean of the updates.

Dong Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018, Definition 2.
"""

from fractions import Fraction

import numpy as np

from fedstrata.experiment.sections import RuleSettings, SmallerPart
from fedstrata.rules.base import AllUpdates, Weights, weighted_sum
from fedstrata.tensors import Flat


class TrimmedMean(AllUpdates):
    """Take the mean of each element over the children, without the largest and the smallest values. Each child counts
    once, so a false number of examples changes nothing.
    """

    class Options(RuleSettings):
        cut: SmallerPart = 0.2
        """Share of the children, rounded down: so many largest values and so many smallest values are left out."""

    options: Options

    def combine(self, updates: Flat, weights: Weights) -> Flat:
        children = len(updates)
        cut = self.withstands(children)
        kept = np.sort(updates, axis=0)[cut : children - cut]
        combined: Flat = (weighted_sum(kept, np.ones(len(kept))) / len(kept)).astype(np.float32)
        return combined

    def withstands(self, children: int) -> int:
        """Return how many of the largest values are left out, which is also the number of smallest values that are left
        out. It is `cut` times `children`, rounded down. `cut` is used as the exact decimal number that the file states.
        """
        return int(Fraction(repr(self.options.cut)) * children)
