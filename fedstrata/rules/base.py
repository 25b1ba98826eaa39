"""The interface of a rule: how a parent combines the updates of its children in one round.

A parent is an LPS with devices as children, or the GPS with LPSs as children. For each stream of averaged values, the
rule makes a `Total`, which takes the children's values as they arrive.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import NoUpdatesError
from fedstrata.experiment.sections import RuleSettings
from fedstrata.plugins import or_failed
from fedstrata.rules.spool import Spool
from fedstrata.tensors import Flat, own_vector
from fedstrata.tensors.exact_sum import check_values, largest_value

Values = NDArray[Any]  # float32 values, or partial sums in int64
Weights = NDArray[np.int64]
Blocks = Callable[[], Iterator[tuple[int, int, Flat]]]  # yields first element, last element (exclusive), and the values


class Total(Protocol):
    """Define what a parent collects for one stream in one round."""

    @property
    def num_examples(self) -> int:
        """The sum of the weights of all accepted children."""

    @property
    def is_settled(self) -> bool:
        """True if `mean` can be called without `settle`."""

    @property
    def factors(self) -> Mapping[str, float]:
        """The factor of each child's update in the combined update, after `settle`. Empty if the rule does not choose
        factors.
        """

    def take(self, child_id: str, start: int, values: Values, weight: int) -> None:
        """Take the next values of a child's update. `start` is the position of the first value in the stream.

        Raises:
            PayloadError: a value is refused. Nothing is taken.
        """

    def accept(self, child_id: str, weight: int) -> None:
        """Accept a child's update, after all its values were taken."""

    def forget(self, child_id: str) -> bool:
        """Remove a child's values, and return True. If this is not possible, change nothing and return False. Then all
        children send updates again.
        """

    def clear(self) -> None:
        """Remove all values."""

    def settle(self) -> None:
        """Finish the round's computation. This is called once, in a thread, after the last update.

        Raises:
            RunStoppedError: these updates cannot all come from honest children.
            PluginError: the user's own rule fails.
        """

    def mean(self, start: int = 0, stop: int | None = None) -> Flat:
        """Return elements of the combined update, float32. Raises NoUpdatesError if no child was accepted."""


class Rule:
    """Define how a parent combines updates. A rule object stores nothing between calls."""

    Options: ClassVar[type[RuleSettings]] = RuleSettings
    """The rule's options, a subclass of `RuleSettings`. pydantic checks them."""
    is_sum: ClassVar[bool] = False
    """True if the combined update is the exact weighted mean. Only then can a GPS add the sums of several LPSs."""
    keeps_updates: ClassVar[bool] = False
    """True if updates wait on the parent's disk until the round ends."""

    def __init__(self, options: RuleSettings) -> None:
        self.options = options

    def refuses(self) -> Mapping[str, str]:
        """Return the features, such as keys of the experiment file, that the rule refuses, each with the reason.

        `FEATURES` in `fedstrata.checks.combinations` has the names of all features.
        """
        return {}

    def check(self, children: Collection[str]) -> None:
        """Raise ExperimentError if the rule's options do not fit the run. `children` has the ids of all devices except
        newcomers, or of all LPSs.
        """

    def withstands(self, children: int) -> int:
        """Return how many of `children` children may send arbitrary updates. The combined update then still has a
        bounded distance to all other updates.
        """
        return 0

    def in_round(self, global_round: int) -> "Rule":
        """Return the rule for a global round. The first round has the number 0."""
        return self

    def in_stream(self, stream: int) -> "Rule":
        """Return the rule for a stream of a round. The first stream has the number 0."""
        return self

    def total(self, size: int, max_weight: int, folder: Path) -> Total:
        """Return an empty total for a stream.

        Args:
            size: number of elements of the stream.
            max_weight: largest sum of the children's weights, at least 1.
            folder: folder for values that do not stay in memory.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Combiner:
    """Hold a function that combines the updates of one block. If the rule chooses one factor per child, also hold these
    factors, which are the same for all blocks.
    """

    combine: Callable[[Flat], Any]
    factors: Sequence[float] = ()  # of all children, in the order of the rows; empty if the rule chooses none


class AllUpdates(Rule):
    """Define a rule that needs the updates of all children at once, element by element. Updates wait on the parent's
    disk until the round ends, and are read block by block.
    """

    keeps_updates = True

    def combine(self, updates: Flat, weights: Weights) -> Flat:
        """Return the combined update of one block of elements, float32, shape (elements,).

        An element of the result may depend only on the same element of the updates, because blocks have any size.

        Args:
            updates: a row for each child, in the order of their ids, float32, shape (children, elements).
            weights: the children's weights, int64, shape (children,). For an LPS these are numbers of examples.
        """
        raise NotImplementedError

    def combiner(self, children: Sequence[str], weights: Weights, blocks: Blocks) -> Combiner:
        """Return the function that combines the updates of one block. If the rule chooses one factor per child, return
        these factors, too. This method is called once per stream, after the last update.

        Args:
            children: the ids of the children, in the order of the rows.
            weights: the children's weights, as for `combine`.
            blocks: yields all blocks, each time from the first to the last.
        """
        return Combiner(combine=partial(self.combine, weights=weights))

    def total(self, size: int, max_weight: int, folder: Path) -> Total:
        """Return a total that keeps all updates on disk until the round ends, and then calls `combine`."""
        return _Combined(self, size, largest_value(max_weight), folder)


class Spooled:
    """Keep the updates of one stream on disk until the end of the round."""

    def __init__(self, spool: Spool, limit: float) -> None:
        """Set the file for the updates, and `limit`, the largest absolute value that an update may contain."""
        self._spool, self._limit = spool, limit
        self._weights: dict[str, int] = {}  # by accepted child
        self.is_settled = False
        self.factors: Mapping[str, float] = {}

    @property
    def num_examples(self) -> int:
        return sum(self._weights.values())

    def take(self, child_id: str, start: int, values: Values, weight: int) -> None:
        if weight:
            check_values(values, self._limit)
            self._spool.write(child_id, start, values)

    def accept(self, child_id: str, weight: int) -> None:
        self._weights[child_id] = weight

    def forget(self, child_id: str) -> bool:
        self._weights.pop(child_id, None)
        return True

    def clear(self) -> None:
        self._weights.clear()


class _Combined(Spooled):
    """Combine the updates of one stream at the end of the round."""

    def __init__(self, rule: AllUpdates, size: int, limit: float, folder: Path) -> None:
        super().__init__(Spool(size, folder), limit)
        self._rule = rule

    def settle(self) -> None:
        children = sorted(self._weights)
        weights = np.array([self._weights[child_id] for child_id in children], np.int64)
        self._combined = np.empty(self._spool.size, np.float32)
        blocks = partial(self._spool.blocks, children)
        name = self._rule.options.name
        failing, wanted = f"rule {name} failed with", f"rule {name}: combine must return finite numbers"
        with or_failed(failing, self._rule):
            combiner = self._rule.combiner(children, weights, blocks)
        for start, stop, block in blocks():
            with or_failed(failing, self._rule):
                self._combined[start:stop] = own_vector(combiner.combine(block), stop - start, wanted)
        self.factors = dict(zip(children, map(float, combiner.factors), strict=False))
        self._spool.close()
        self.is_settled = True

    def mean(self, start: int = 0, stop: int | None = None) -> Flat:
        if not (self.is_settled and self._weights):
            raise NoUpdatesError("the round was closed before any child reported")
        return self._combined[start:stop]


def weighted_sum(updates: Flat, factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of the rows, each multiplied by its factor, float64, shape (elements,). Rows are added one after
    another. So the size of a block does not change a bit of the result. With NumPy's sums, it could.
    """
    total = np.zeros(updates.shape[1])
    for row, factor in zip(updates, factors, strict=True):
        if factor:
            total += np.multiply(row, factor, dtype=np.float64)
    return total
