"""Rules that choose a factor for each child from the scalar products of all updates.

Products are exact. Each update is first rounded to 19 bits and a sign, relative to its largest value. So products are
integers of at most 2⁵³. They do not depend on the order of arrival, the blocks or the matrix library.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import PluginError
from fedstrata.rules.base import AllUpdates, Blocks, Combiner, Weights, weighted_sum

Numbers = NDArray[np.float64]
PIECE = 1 << 15  # number of elements that are multiplied at once; 2¹⁵ products of 38 bits are at most 2⁵³
BITS = 19  # of an absolute value, for streams of fewer than 2²⁴ elements


class Updates:
    """Give a rule the products of one stream's updates. Rows and columns have the order of `children`, the ids."""

    def __init__(self, children: Sequence[str], weights: Weights, blocks: Blocks) -> None:
        """Set the children with their weights, and the function that yields blocks of their updates."""
        self.children = children
        self.weights = weights
        self._blocks = blocks

    @cached_property
    def products(self) -> Numbers:
        """The scalar products of all pairs of updates, shape (children, children)."""
        count = len(self.children)
        sums = self._sums((count, count), lambda piece: piece @ piece.T)
        return sums * self._units[:, None] * self._units

    def products_with(self, rows: Sequence[int]) -> Numbers:
        """Return the scalar products of some updates with all updates, shape (rows, children)."""
        sums = self._sums((len(rows), len(self.children)), lambda piece: piece[rows] @ piece.T)
        return sums * self._units[rows, None] * self._units

    @cached_property
    def norms(self) -> Numbers:
        """The Euclidean norms of the updates, shape (children,)."""
        squares = self._sums((len(self.children),), lambda piece: np.square(piece).sum(axis=1))
        return np.sqrt(squares) * self._units

    @cached_property
    def squared_distances(self) -> Numbers:
        """The squared Euclidean distances of all pairs of updates, shape (children, children)."""
        squares = np.diagonal(self.products)
        return np.maximum(squares[:, None] + squares - 2 * self.products, 0)

    @cached_property
    def _units(self) -> Numbers:
        """The power of two of which each update is a multiple after rounding, shape (children,)."""
        largest, size = np.zeros(len(self.children), np.float32), 0
        for _, stop, block in self._blocks():
            np.maximum(largest, np.abs(block).max(axis=1), out=largest)
            size = stop
        units: Numbers = np.ldexp(1.0, np.frexp(largest)[1] - min(BITS, (62 - size.bit_length()) // 2))
        return units

    def _sums(self, shape: tuple[int, ...], multiply: Callable[[Numbers], Numbers]) -> NDArray[np.int64]:
        """Return the sum of `multiply` over all pieces of the updates. The argument of `multiply` is a piece in whole
        multiples of `_units`. The sum of each piece is exact.
        """
        sums = np.zeros(shape, np.int64)
        for piece in self._pieces():
            sums += multiply(piece).astype(np.int64)
        return sums

    def _pieces(self) -> Iterator[Numbers]:
        for start, stop, block in self._blocks():
            for at in range(0, stop - start, PIECE):
                piece = block[:, at : at + PIECE].astype(np.float64)
                piece /= self._units[:, None]
                yield np.rint(piece, out=piece)


class ByProducts(AllUpdates):
    """Define a rule that chooses a factor for each child. The combined update is the sum of all updates, each
    multiplied by its factor.
    """

    def factors(self, updates: Updates) -> Numbers:
        """Return the factor of each child's update, shape (children,). This is called once per stream and round."""
        raise NotImplementedError

    def combiner(self, children: Sequence[str], weights: Weights, blocks: Blocks) -> Combiner:
        """Return the function that adds up the updates of one block, with the `factors` of whole updates."""
        if not children:
            return Combiner(combine=lambda block: block)
        found = np.asarray(self.factors(Updates(children, weights, blocks)), np.float64)
        if found.shape != (len(children),) or not np.isfinite(found).all():
            raise PluginError(
                f"rule {self.options.name}: factors must return finite numbers of shape ({len(children)},), not "
                f"{found!r:.80}"
            )
        return Combiner(combine=lambda block: weighted_sum(block, found), factors=found.tolist())
