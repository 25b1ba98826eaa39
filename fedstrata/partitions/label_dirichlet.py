"""Partition `label_dirichlet`: for each label, the shares of all devices are drawn, so devices differ in labels and in
sizes.

M. Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019, as in PFLlib and in
NIID-Bench: Q. Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022.
"""

from typing import Literal

import numpy as np

from fedstrata.datasets import Dataset
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.stock import TRAIN_ORDER, Counts, Stock, kinds_of, tests_like
from fedstrata.partitions.unequal import UnequalPartition, parts

SHARES = 0x6C646972  # purpose of random draws, with the number of the draw


class LabelDirichletPartition(UnequalPartition):
    """Divide the examples of each label among devices by shares from Dirichlet(concentration)."""

    kind: Literal["label_dirichlet"]
    """`label_dirichlet`: each label draws the shares of devices, as in NIID-Bench and PFLlib; sizes are unequal."""
    capped: bool = True
    """If true, a device with its even share of all examples gets none of further labels, as in both libraries."""
    by: str | None = None
    """Column that replaces the labels in this partition; without it the labels are used."""

    def divide(self, dataset: Dataset, seed: int) -> Assignment:
        """Return examples for each device. Labels are divided in order, and the examples of a label in a random order.

        With `capped`, a device is full when it has the mean number of examples, and gets no further label. If all
        devices with a share of a label are full, the label goes to the other devices in equal parts.
        """
        kinds = kinds_of(dataset, self.by)
        stock = Stock(kinds.train, kinds.count, [seed, TRAIN_ORDER])
        counts = self.drawn(lambda rng: self._counts(stock.sizes, rng), [seed, SHARES], len(kinds.train))
        train = [stock.take(of_device) for of_device in counts.T]
        return Assignment(train=train, test=tests_like(train, kinds, seed))

    def _counts(self, sizes: Counts, rng: np.random.Generator) -> Counts:
        """Draw how many examples of each label each device gets, shape (labels, devices)."""
        counts = np.zeros((len(sizes), self.devices), np.int64)
        for label, size in enumerate(sizes):
            shares = self.shares(rng)
            if self.capped:
                is_open = counts.sum(axis=0) < sizes.sum() / self.devices
                shares = np.where(is_open, shares, 0.0)
                if not shares.any():
                    shares = np.where(is_open.any(), is_open, True).astype(np.float64)
            counts[label] = parts(int(size), shares)
        return counts
