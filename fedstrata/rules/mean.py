"""The exact weighted mean, also of masked updates and of partial sums.

FedAvg: Brendan McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from fedstrata.errors import PayloadError, RunStoppedError
from fedstrata.rules.base import Rule, Total, Values
from fedstrata.tensors import ExactSum


class ExactTotal(ExactSum):
    """Add values to an exact sum as they arrive."""

    is_settled = True
    factors: Mapping[str, float] = MappingProxyType({})

    def take(self, child_id: str, start: int, values: Values, weight: int) -> None:
        self.fold(start, values, weight)

    def accept(self, child_id: str, weight: int) -> None:
        self.count(weight)

    def forget(self, child_id: str) -> bool:
        return False

    def settle(self) -> None:
        """Do nothing, because each value was checked as it arrived."""


def exact(totals: Iterable[Total]) -> list[ExactTotal]:
    """Return the exact sums among these totals. If the rule has `is_sum`, these are all totals."""
    return [total for total in totals if isinstance(total, ExactTotal)]


class Mean(Rule):
    """Compute the mean of the updates, each weighted by its number of examples."""

    is_sum = True

    def total(self, size: int, max_weight: int, folder: Path) -> Total:
        return ExactTotal(size, max_weight)


class PartialMean(Mean):
    """Compute the mean at the GPS from the exact sums of the LPSs."""

    def total(self, size: int, max_weight: int, folder: Path) -> Total:
        return PartialTotal(size, max_weight)


class MaskedMean(Mean):
    """Compute the mean of updates to which devices have added masks. The masks cancel in the sum."""

    def total(self, size: int, max_weight: int, folder: Path) -> Total:
        return MaskedTotal(size, max_weight)


class PartialTotal(ExactTotal):
    """Add partial sums, and check that the values are not too large."""

    def take(self, child_id: str, start: int, values: Values, weight: int) -> None:
        self.fold_sums(start, values, weight)


class MaskedTotal(ExactTotal):
    """Add masked values. Only the complete sum can be checked, because single values are random."""

    is_settled = False

    def take(self, child_id: str, start: int, values: Values, weight: int) -> None:
        self.fold_unchecked(start, values, weight)

    def settle(self) -> None:
        """Raise RunStoppedError if masks have not cancelled in the sum, or if a value of the sum is too large."""
        try:
            self.check_total()
        except PayloadError as error:
            raise RunStoppedError(
                f"the sum of the masked updates is impossible ({error}): a device has used masks for a wrong set of "
                "devices, or sent values out of range; under secure_aggregation no server can tell which device"
            ) from None
