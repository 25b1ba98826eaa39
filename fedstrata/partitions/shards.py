"""Partition `shards`: each device has some parts of the examples in the order of their labels.

B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, section 3.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from fedstrata.datasets import Dataset
from fedstrata.errors import DataError
from fedstrata.experiment.sections import MAX_DEVICES
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Partition
from fedstrata.partitions.stock import kinds_of, tests_like

SHARDS = 0x73687264  # purpose of random draws


class ShardPartition(Partition):
    """Sort all examples by label, cut them into shards of equal sizes, and give each device random shards."""

    kind: Literal["shards"]
    """`shards`: each device has some equal parts of the examples sorted by label, as in the paper about FedAvg."""
    devices: int = Field(ge=1, le=MAX_DEVICES)
    """Number of devices."""
    shards_per_device: int = Field(default=2, ge=1)
    """Number of shards of each device; with two, most devices have examples of two labels."""
    by: str | None = None
    """Column that replaces the labels in this partition; without it the labels are used."""

    @property
    def device_count(self) -> int:
        return self.devices

    def divide(self, dataset: Dataset, seed: int) -> Assignment:
        """Return examples for each device. Examples of one label stay in the order of the data. Sizes of shards differ
        by at most one example.
        """
        kinds, count = kinds_of(dataset, self.by), self.devices * self.shards_per_device
        if count > len(kinds.train):
            raise DataError(
                f"the partition needs {self.devices} x {self.shards_per_device} shards, but the training data has "
                f"{len(kinds.train)} examples; lower partition.devices or partition.shards_per_device"
            )
        shards = np.array_split(np.argsort(kinds.train, kind="stable"), count)
        order = np.random.default_rng([seed, SHARDS]).permutation(count).reshape(self.devices, self.shards_per_device)
        train = [np.concatenate([shards[place] for place in places]) for places in order]
        return Assignment(train=train, test=tests_like(train, kinds, seed))
