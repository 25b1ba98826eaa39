"""A rule as a user writes it: it leaves out updates that point in another direction than most."""

import numpy as np

from fedstrata.rules import ByProducts, RuleSettings


class Agreeing(ByProducts):
    class Options(RuleSettings):
        least: float = 0.0

    def factors(self, updates):
        """Keep updates whose median cosine with all updates is at least `least`."""
        cosines = updates.products / np.outer(updates.norms, updates.norms)
        kept = np.median(cosines, axis=1) >= self.options.least
        return kept / max(1, kept.sum())

    def withstands(self, children):
        return (children - 1) // 2
