"""Partition `quantity`: devices differ in their numbers of examples only.

Q. Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022 (NIID-Bench), quantity skew.
"""

from typing import Literal

import numpy as np

from fedstrata.datasets import Dataset
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.stock import TRAIN_ORDER, labels_or_one_kind, tests_like
from fedstrata.partitions.unequal import UnequalPartition, parts

SIZES = 0x7174736B  # purpose of random draws, with the number of the draw


class QuantityPartition(UnequalPartition):
    """Divide all examples, in random order, into parts with shares from Dirichlet(concentration)."""

    kind: Literal["quantity"]
    """`quantity`: devices differ only in size, by shares from a Dirichlet distribution, as in NIID-Bench."""

    def divide(self, dataset: Dataset, seed: int) -> Assignment:
        """Return examples for each device. No device has fewer than `minimum` examples after rounding to whole numbers.
        NIID-Bench compares the minimum with the numbers before rounding.
        """
        order = np.random.default_rng([seed, TRAIN_ORDER]).permutation(len(dataset.train))
        (sizes,) = self.drawn(lambda rng: parts(len(order), self.shares(rng))[None], [seed, SIZES], len(order))
        train = np.split(order, np.cumsum(sizes)[:-1])
        return Assignment(train=train, test=tests_like(train, labels_or_one_kind(dataset), seed))
