"""Exact, order-free weighted sums: float32 values on a fixed grid of integers.

Each value is rounded once to a multiple of 2⁻³² and multiplied by its number of examples; what is added after
that are integers, so no order of arrival can change a bit and nothing has to be kept or sorted. Rounding moves
a mean by at most 2⁻³³, below half a float32 step of any value above 2⁻⁹.
"""

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import NoUpdatesError, PayloadError
from fedstrata.tensors.layout import Flat

Sums = NDArray[np.int64]
GRID_BITS = 32
GRID = 2.0**GRID_BITS
PIECE = 1 << 15  # elements folded at once: scratch and sums stay in a core's cache
# Adding 1.5·2²⁰ to a float64 below 2¹⁹ rounds it to a multiple of 2⁻³², whose number stands in the sum's low bits.
# The bits of 1.5·2²⁰ itself are added along, once an example, and taken out again at the end: integers that
# overflow go round, so what is left is exact.
_MAGIC = 1.5 * 2.0 ** (52 - GRID_BITS)
_MAGIC_BITS = int(np.float64(_MAGIC).view(np.int64))


def largest_value(max_examples: int) -> float:
    """Return the largest |value| that a sum takes if its weights add up to at most so many."""
    return min(2.0**18, 2.0**30 / max_examples)


class ExactSum:
    """A weighted sum of vectors, shape (size,); two float32 vectors large (int64)."""

    def __init__(self, size: int, max_examples: int) -> None:
        """`max_examples` is the most the weights can add up to; it sets `limit`, the largest |value| taken."""
        if max_examples < 1:
            raise PayloadError(f"a sum over {max_examples} examples: at least 1 is needed")
        self.limit = largest_value(max_examples)
        self.num_examples = 0
        self._max_examples = max_examples
        self._sums = np.zeros(size, np.int64)
        self._scratch = np.empty(min(PIECE, size), np.float64)

    def fold(self, start: int, values: Flat, num_examples: int) -> None:
        """Add `num_examples` times `values` to the elements from `start` on; `count` the examples when all is in.

        Raises:
            PayloadError: a value is NaN, infinite or beyond `limit`; nothing has been added then.
        """
        self.check(values)
        for at in range(0, len(values), PIECE):
            piece = values[at : at + PIECE]
            scratch = self._scratch[: len(piece)]
            scratch[...] = piece
            scratch += _MAGIC
            integers = scratch.view(np.int64)
            integers *= num_examples
            sums = self._sums[start + at : start + at + len(piece)]
            np.add(sums, integers, out=sums)

    def fold_sums(self, start: int, sums: Sums, num_examples: int) -> None:
        """Add the sums that another `ExactSum`, over `num_examples` of these, gives by `sums`.

        Raises:
            PayloadError: a sum is beyond what so many examples can come to; nothing has been added then.
        """
        self._check_sums(sums, num_examples)
        self.fold_unchecked(start, sums, num_examples)

    def fold_unchecked(self, start: int, sums: Sums, num_examples: int) -> None:
        """Add sums modulo 2⁶⁴, as `fold_sums` does. `check_total` has to check their total."""
        here = self._sums[start : start + len(sums)]
        np.add(here, sums, out=here)
        np.add(here, np.int64(_wrapped(num_examples * _MAGIC_BITS)), out=here)

    def check_total(self) -> None:
        """Refuse a sum that cannot be one of so many examples. Raises PayloadError."""
        for start in range(0, len(self._sums), PIECE):
            self._check_sums(self.sums(start, start + PIECE), self.num_examples)

    def _check_sums(self, sums: Sums, num_examples: int) -> None:
        most = int(self.limit * GRID) * num_examples
        if len(sums) and not (-most <= int(sums.min()) and int(sums.max()) <= most):
            raise PayloadError(
                f"partial sums from {sums.min()} to {sums.max()}: {num_examples} examples come to at most ±{most}"
            )

    def shift(self, values: Flat, times: int) -> None:
        """Add a whole vector so many times without counting anything for it: what counted values are relative to."""
        self.fold(0, values, times)
        np.add(self._sums, np.int64(_wrapped(-times * _MAGIC_BITS)), out=self._sums)

    def sums(self, start: int = 0, stop: int | None = None) -> Sums:
        """Return the elements [start, stop) as they stand on the grid: int64 multiples of 2⁻³², each times its
        examples.
        """
        return self._sums[start:stop] - np.int64(_wrapped(self.num_examples * _MAGIC_BITS))

    def check(self, values: Flat) -> None:
        """Refuse values that are not finite or too large for the grid."""
        if not len(values):
            return
        low, high = float(values.min()), float(values.max())
        if not (-self.limit <= low and high <= self.limit):
            raise PayloadError(
                f"values from {low:g} to {high:g}: they must be finite and within ±{self.limit:g}; "
                "training has diverged, or the sender is faulty"
            )

    def count(self, num_examples: int) -> None:
        """Count the examples that a completely folded vector stands for."""
        if not 0 < num_examples <= self._max_examples - self.num_examples:
            raise PayloadError(f"{num_examples} examples on top of {self.num_examples}: {self._max_examples} in all")
        self.num_examples += num_examples

    def add(self, values: Flat, num_examples: int) -> None:
        """Fold and count a whole vector."""
        self.fold(0, values, num_examples)
        self.count(num_examples)

    def mean(self, start: int = 0, stop: int | None = None) -> Flat:
        """Return the weighted mean of the elements [start, stop), float32.

        Raises:
            NoUpdatesError: nothing has been counted.
        """
        if not self.num_examples:
            raise NoUpdatesError("the round was closed before any child had reported")
        return (self.sums(start, stop) / (self.num_examples * GRID)).astype(np.float32)

    def clear(self) -> None:
        """Forget all that was added."""
        self._sums.fill(0)
        self.num_examples = 0


def _wrapped(number: int) -> int:
    """Return a number as int64 arithmetic has it, modulo 2⁶⁴."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
