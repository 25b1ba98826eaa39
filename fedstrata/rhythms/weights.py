"""The factors for the weights of updates from models of earlier rounds. Also the step with which a round changes the
model.

In round v, child c sends an update u of n examples, from the model of round b. The update's staleness is v − b. The
child's gap is the number of rounds since the round that took its last update. The next model is x + Σ q u / D, with the
weights q = n · F and the divisor D = max(Q, ⌈Q · N / (ρ · Σ n)⌉). Here Q is the sum of all weights, N is the number of
examples of all children, and ρ is the step. For polynomial weights, Q is 2¹⁰ · Σ n, so that the discount shortens the
step.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from fedstrata.experiment.sections import (
    CatchUpWeights,
    EvenWeights,
    PolynomialWeights,
    UpdateWeights,
)
from fedstrata.rhythms.base import Contributed

UNIT = 1 << 10  # factor of a fresh update with polynomial weights


class UpdateFactors(Protocol):
    """Define F, the factor by which the weight of an update is multiplied."""

    @property
    def most(self) -> int:
        """The largest possible factor."""

    def factor(self, update: Contributed) -> int:
        """Return the factor F of an update."""

    def counted(self, stated: int, weighed: int) -> int:
        """Return Q, the smallest possible divisor D. `stated` is Σ n, and `weighed` is Σ q."""


class Even:
    """Weigh each update only by its examples, so the factor F is 1."""

    most = 1

    def factor(self, update: Contributed) -> int:
        return 1

    def counted(self, stated: int, weighed: int) -> int:
        return weighed


@dataclass(frozen=True)
class CatchUp:
    """Weigh each update by its examples and its gap: F is the gap, at most `most`. Over time, the total weight of each
    child then matches its number of examples.
    """

    most: int

    def factor(self, update: Contributed) -> int:
        return min(update.gap, self.most)

    def counted(self, stated: int, weighed: int) -> int:
        return weighed


@dataclass(frozen=True)
class Polynomial:
    """Discount stale updates: F is 2¹⁰ · (1 + staleness)^-a, rounded, at least 1. FedAsync, equation 5."""

    exponent: float
    most = UNIT

    def factor(self, update: Contributed) -> int:
        return max(1, int(UNIT * (1.0 + update.staleness) ** -self.exponent + 0.5))

    def counted(self, stated: int, weighed: int) -> int:
        return UNIT * stated


def make_factors(settings: UpdateWeights) -> UpdateFactors:
    """Return the factors that the key `weights` names."""
    match settings:
        case EvenWeights():
            return Even()
        case CatchUpWeights():
            return CatchUp(settings.most)
        case PolynomialWeights():
            return Polynomial(settings.exponent)


def divisor(counted: int, stated: int, whole: int, step: Fraction) -> int:
    """Return the divisor D. `counted` is Q, `stated` is Σ n, `whole` is N, and `step` is ρ. If Σ n is 0, return 0."""
    if not stated:
        return 0
    return max(counted, -(-counted * whole * step.denominator // (step.numerator * stated)))
