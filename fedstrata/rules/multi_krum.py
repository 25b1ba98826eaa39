"""Multi-Krum: the mean of the updates that are closest to others.

Peva Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017.
"""

from fractions import Fraction
from typing import Annotated

import numpy as np
from pydantic import Field

from fedstrata.experiment.sections import RuleSettings, SmallerPart
from fedstrata.rules.products import ByProducts, Numbers, Updates


class MultiKrum(ByProducts):
    """Take the mean of the updates with the lowest scores. A score is the sum of the squared distances to the closest
    other updates. With n children and f attackers, a score has n − f − 2 distances, and the mean has n − f updates. For
    this, f is at most n − 3, so the mean has at least three updates. Each child counts once, so a false number of
    examples changes nothing.
    """

    class Options(RuleSettings):
        attackers: Annotated[int, Field(ge=0)] | SmallerPart = 0.2
        """Number of children that may lie, or their share, rounded down; the proof holds up to (n − 3) / 2 of n."""

    options: Options

    def factors(self, updates: Updates) -> Numbers:
        children = len(updates.children)
        lies = self._left_out(children)
        distances = np.sort(updates.squared_distances + np.diag(np.full(children, np.inf)), axis=1)
        scores = distances[:, : max(1, children - lies - 2)].sum(axis=1)
        kept = np.argsort(scores, kind="stable")[: children - lies]
        factors = np.zeros(children)
        factors[kept] = 1 / len(kept)
        return factors

    def withstands(self, children: int) -> int:
        return max(0, min(self._left_out(children), (children - 3) // 2))

    def _left_out(self, children: int) -> int:
        attackers = self.options.attackers
        wanted = attackers if isinstance(attackers, int) else int(Fraction(repr(attackers)) * children)
        return max(0, min(wanted, children - 3))
