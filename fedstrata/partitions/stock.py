"""Tools for all kinds of partition: examples in piles by label, and ways to divide a number into parts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets import Dataset

Indices = NDArray[np.int64]
Shares = NDArray[np.float64]  # probability of each label, shape (num_classes,)
Drift = tuple[float, ...]
Counts = NDArray[np.int64]  # number of examples of each label, shape (num_classes,)

# Purposes of random draws, with the index of a label. LABEL_SHARES has the index of a device.
TRAIN_ORDER, TEST_ORDER, LABEL_SHARES = 101, 102, 103


@dataclass(frozen=True, kw_only=True, eq=False)
class Kinds:
    """Hold the kind of each example: its label, or its value of another column. Kinds are numbers from 0 to `count` −
    1.
    """

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    count: int


def kinds_of(dataset: Dataset, by: str | None) -> Kinds:
    """Return the kind of each example: its value in column `by`, or its label if `by` is None. Raises DataError if the
    column is missing.
    """
    return Kinds(train=dataset.train.column(by), test=dataset.test.column(by), count=len(dataset.values(by)))


def labels_or_one_kind(dataset: Dataset) -> Kinds:
    """Return the label of each example as its kind. Without labels all examples have the same kind."""
    if dataset.train.has_labels:
        return kinds_of(dataset, None)
    train, test = (np.zeros(len(part), np.int64) for part in (dataset.train, dataset.test))
    return Kinds(train=train, test=test, count=1)


def no_indices() -> Indices:
    """Return an empty array of indices."""
    return np.empty(0, np.int64)


class Stock:
    """Hold the examples of each label in a random order, as a pile from which examples are taken."""

    def __init__(self, labels: NDArray[np.int64], num_classes: int, address: list[int]) -> None:
        self._piles = [
            np.random.default_rng([*address, label]).permutation(np.flatnonzero(labels == label))
            for label in range(num_classes)
        ]
        self.sizes: Counts = np.array([len(pile) for pile in self._piles], dtype=np.int64)
        self._taken = np.zeros_like(self.sizes)

    @property
    def left(self) -> Counts:
        """The number of examples of each label that are left."""
        left: Counts = np.maximum(self.sizes - self._taken, 0)
        return left

    def take(self, counts: Counts) -> Indices:
        """Return the next `counts` examples of each label, sorted by label. When all examples of a label have been
        taken, the first are taken again.
        """
        starts, self._taken = self._taken, self._taken + counts
        rows = zip(self._piles, starts, counts, strict=True)
        return np.concatenate([pile.take(np.arange(start, start + count), mode="wrap") for pile, start, count in rows])


def level(total: int, available: Counts) -> Counts:
    """Return counts with the sum `total`, as equal as `available` allows. The sum of `available` must be at least
    `total`.
    """
    counts = np.zeros_like(available)
    while total > 0:
        has_more = np.flatnonzero(available > counts)
        share = max(1, total // len(has_more))
        step = np.minimum(share, (available - counts)[has_more[:total]])
        counts[has_more[:total]] += step
        total -= int(step.sum())
    return counts


def drawn(rng: np.random.Generator, total: int, shares: NDArray[np.float64], left: Counts) -> Counts:
    """Draw how many examples of each label a device gets, `total` in all, and return these counts. `shares` has the
    probability of each label. `left` has the number of unused examples of each label.
    """
    counts = np.zeros_like(left)
    while (missing := total - int(counts.sum())) > 0:
        more = left - counts
        weights = np.where(more > 0, shares, 0.0)
        if weights.sum() == 0:  # no example is left of all labels with a share for this device
            weights = more.astype(np.float64)
        counts += np.minimum(rng.multinomial(missing, weights / weights.sum()), more)
    return counts


def drift(train: Sequence[Indices], wanted: Sequence[Shares], kinds: Kinds) -> Drift:
    """Return, for each device, the total variation distance between its label shares and `wanted`, the shares that were
    drawn for it. The distance is 0 if both are equal, and 1 if they have no label in common.

    Chance alone makes the distance small but not 0. If the labels that a device wants have run out, the distance is
    large.
    """
    found = (np.bincount(kinds.train[indices], minlength=kinds.count) / len(indices) for indices in train)
    return tuple(float(np.abs(own - drawn).sum()) / 2 for own, drawn in zip(found, wanted, strict=True))


def tests_like(train: list[Indices], kinds: Kinds, seed: int) -> list[Indices]:
    """Return the same number of test examples for each device, with the label shares of its training examples.

    Devices get different examples until all examples of a label are used. Then the examples of this label are used
    again, so that every device is tested on its own labels. No device gets an example twice. If there are too few
    examples with a device's labels, the device gets fewer examples.
    """
    stock = Stock(kinds.test, kinds.count, [seed, TEST_ORDER])
    share = max(1, len(kinds.test) // len(train))
    tests = []
    for indices in train:
        held = np.bincount(kinds.train[indices], minlength=kinds.count)
        tests.append(stock.take(np.minimum(apportioned(share, np.where(stock.sizes > 0, held, 0)), stock.sizes)))
    return tests


def apportioned(total: int, weights: Counts) -> Counts:
    """Return counts with the sum `total` in proportion to `weights`, by largest remainders. If all weights are 0,
    return zeros.
    """
    if not weights.sum():
        return np.zeros_like(weights)
    counts, remainders = np.divmod(total * weights, weights.sum())
    largest = np.argsort(-remainders, kind="stable")[: total - int(counts.sum())]
    counts[largest] += 1
    return counts
