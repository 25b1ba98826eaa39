"""Exact weighted sums of float32 values. The order in which values are added does not change the sum.

Each value is rounded once, to a multiple of 2⁻³², and multiplied by its number of examples. The sum adds integers, so
the order of arrival cannot change a bit, and no update has to be kept or sorted. Rounding changes a mean by at most
2⁻³³. For any value above 2⁻⁹, this is at most half a float32 step.
"""

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import DIVERGED, NoUpdatesError, PayloadError
from fedstrata.tensors.layout import Flat

Sums = NDArray[np.int64]
GRID_BITS = 32
GRID = 2.0**GRID_BITS
PIECE = 1 << 15  # number of elements that are added at once, so that they stay in a core's cache
# Adding 1.5·2²⁰ to a float64 below 2¹⁹ rounds it to a multiple n · 2⁻³². The bits of the result, read as an integer,
# are n plus a constant. So integers are added instead of floats. In the end, the constant is subtracted once per
# example. Overflow does not matter, because integer arithmetic is modulo 2⁶⁴.
_MAGIC = 1.5 * 2.0 ** (52 - GRID_BITS)
_MAGIC_BITS = int(np.float64(_MAGIC).view(np.int64))


def largest_value(max_examples: int) -> float:
    """Return the largest absolute value that a sum accepts if its weights add up to at most `max_examples`."""
    return min(2.0**18, 2.0**30 / max_examples)


def check_values(values: Flat, limit: float) -> None:
    """Check that values are finite and within ±`limit`. Raises PayloadError if they are not."""
    if not len(values):
        return
    low, high = float(values.min()), float(values.max())
    if not (-limit <= low and high <= limit):
        raise PayloadError(
            f"values go from {low:g} to {high:g}; they must be finite and within ±{limit:g}: "
            f"{DIVERGED}, or the sender is faulty"
        )


class ExactSum:
    """Hold a weighted sum of vectors, shape (size,), as int64. The sum takes as much memory as two float32 vectors."""

    def __init__(self, size: int, max_examples: int) -> None:
        """Set `max_examples`, the largest sum of the weights. It determines `limit`, the largest absolute value that
        may be added.
        """
        if max_examples < 1:
            raise PayloadError(f"a sum must have at least 1 example, not {max_examples}")
        self.limit = largest_value(max_examples)
        self.num_examples = 0
        self._max_examples = max_examples
        self._sums = np.zeros(size, np.int64)
        self._scratch = np.empty(min(PIECE, size), np.float64)

    def fold(self, start: int, values: Flat, num_examples: int) -> None:
        """Add `num_examples` times `values` to the elements from `start` on. After all elements of a vector, call
        `count` once.

        Raises:
            PayloadError: a value is NaN, infinite or beyond `limit`. Nothing is added.
        """
        check_values(values, self.limit)
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
        """Add partial sums over `num_examples` examples. They come from the function `sums` of another `ExactSum`.

        Raises:
            PayloadError: a sum is too large for this many examples. Nothing is added.
        """
        self._check_sums(sums, num_examples)
        self.fold_unchecked(start, sums, num_examples)

    def fold_unchecked(self, start: int, sums: Sums, num_examples: int) -> None:
        """Add partial sums modulo 2⁶⁴, like `fold_sums` but without a check. After the last addition, `check_total`
        must check the sum.
        """
        here = self._sums[start : start + len(sums)]
        np.add(here, sums, out=here)
        np.add(here, np.int64(_wrapped(num_examples * _MAGIC_BITS)), out=here)

    def check_total(self) -> None:
        """Check that the sum is possible for its number of examples. Raises PayloadError if it is not."""
        for start in range(0, len(self._sums), PIECE):
            self._check_sums(self.sums(start, start + PIECE), self.num_examples)

    def _check_sums(self, sums: Sums, num_examples: int) -> None:
        most = int(self.limit * GRID) * num_examples
        if len(sums) and not (-most <= int(sums.min()) and int(sums.max()) <= most):
            raise PayloadError(
                f"partial sums go from {sums.min()} to {sums.max()}; with {num_examples} examples they can be at most "
                f"±{most}"
            )

    def shift(self, values: Flat, times: int) -> None:
        """Add a whole vector `times` times, without counting further examples. For instance, this turns a sum of
        differences into a sum of whole values.
        """
        self.fold(0, values, times)
        np.add(self._sums, np.int64(_wrapped(-times * _MAGIC_BITS)), out=self._sums)

    def sums(self, start: int = 0, stop: int | None = None) -> Sums:
        """Return the elements from `start` to `stop` (exclusive) as int64 multiples of 2⁻³². Each element is the sum of
        all values, each value multiplied by its number of examples.
        """
        return self._sums[start:stop] - np.int64(_wrapped(self.num_examples * _MAGIC_BITS))

    def count(self, num_examples: int) -> None:
        """Count the examples of a vector after all its elements were added."""
        if not 0 < num_examples <= self._max_examples - self.num_examples:
            raise PayloadError(
                f"{num_examples} examples more than {self.num_examples} exceed the sum's limit, {self._max_examples}"
            )
        self.num_examples += num_examples

    def add_zeros(self, num_examples: int) -> None:
        """Add a vector of zeros, and count its examples."""
        np.add(self._sums, np.int64(_wrapped(num_examples * _MAGIC_BITS)), out=self._sums)
        self.count(num_examples)

    def add(self, values: Flat, num_examples: int) -> None:
        """Add a whole vector, and count its examples."""
        self.fold(0, values, num_examples)
        self.count(num_examples)

    def mean(self, start: int = 0, stop: int | None = None) -> Flat:
        """Return the weighted mean of the elements from `start` to `stop` (exclusive), float32.

        Raises:
            NoUpdatesError: no examples were counted.
        """
        if not self.num_examples:
            raise NoUpdatesError("the round was closed before any child reported")
        mean = np.empty(len(self._sums[start:stop]), np.float32)
        for at in range(0, len(mean), PIECE):  # a quotient needs twice the memory of its mean
            piece = mean[at : at + PIECE]
            piece[...] = self.sums(start + at, start + at + len(piece)) / (self.num_examples * GRID)
        return mean

    def clear(self) -> None:
        """Reset the sum to zero."""
        self._sums.fill(0)
        self.num_examples = 0


def _wrapped(number: int) -> int:
    """Return a number modulo 2⁶⁴, as int64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
