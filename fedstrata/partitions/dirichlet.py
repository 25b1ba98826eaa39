"""Partition `dirichlet`: each device draws its label shares, and then its examples, from all the training data."""

from typing import Literal

import numpy as np
from pydantic import Field

from fedstrata.datasets import Dataset
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.even import EvenPartition
from fedstrata.partitions.stock import LABEL_SHARES, TRAIN_ORDER, Stock, drawn, drift, kinds_of, tests_like


class DirichletPartition(EvenPartition):
    """Draw each device's label shares from Dirichlet(concentration), so that devices differ in their labels."""

    kind: Literal["dirichlet"]
    """`dirichlet`: each device draws its label shares from a symmetric Dirichlet distribution."""
    concentration: float = Field(default=0.5, gt=0)
    """Concentration of the distribution: small values give skewed label shares, large values give even shares."""
    by: str | None = None
    """Column that replaces the labels in this partition; without it the labels are used."""

    def divide(self, dataset: Dataset, seed: int) -> Assignment:
        """Return examples for each device. The label shares of each device are drawn from Dirichlet(concentration).

        Source: T.-M. H. Hsu, H. Qi and M. Brown, Measuring the Effects of Non-Identical Data Distribution for Federated
        Visual Classification, 2019, with a uniform prior over labels. The paper's α is `concentration` times the number
        of labels. Devices draw in index order, without replacement. If no example of a label is left, its share is
        given to the device's remaining labels, in proportion. If devices take nearly all the data, the last devices get
        the labels that others leave (`Assignment.drift`).
        """
        self.check_total(len(dataset.train))
        kinds = kinds_of(dataset, self.by)
        stock = Stock(kinds.train, kinds.count, [seed, TRAIN_ORDER])
        train, wanted = [], []
        for device_index in range(self.devices):
            rng = np.random.default_rng([seed, LABEL_SHARES, device_index])
            shares = rng.dirichlet(np.full(kinds.count, self.concentration))
            wanted.append(shares)
            train.append(stock.take(drawn(rng, self.examples_per_device, shares, stock.left)))
        return Assignment(train=train, test=tests_like(train, kinds, seed), drift=drift(train, wanted, kinds))
