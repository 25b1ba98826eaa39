"""Partition `iid`: every device draws its examples from all the training data."""

from typing import Literal

import numpy as np

from fedstrata.datasets import Dataset
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.even import EvenPartition
from fedstrata.partitions.stock import TEST_ORDER, TRAIN_ORDER


class IidPartition(EvenPartition):
    """Let every device draw from all examples in the same way."""

    kind: Literal["iid"]
    """`iid`: every device draws from all examples in the same way."""

    def divide(self, dataset: Dataset, seed: int) -> Assignment:
        """Return training examples that are drawn uniformly, each for one device only. The test examples are divided
        evenly.
        """
        self.check_total(len(dataset.train))
        total = self.devices * self.examples_per_device
        drawn = np.random.default_rng([seed, TRAIN_ORDER]).permutation(len(dataset.train))[:total]
        held_out = np.random.default_rng([seed, TEST_ORDER]).permutation(len(dataset.test))
        return Assignment(
            train=list(drawn.reshape(self.devices, self.examples_per_device)),
            test=[held_out[index :: self.devices] for index in range(self.devices)],
        )
