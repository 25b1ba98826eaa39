"""Partition `pathological`: no device has more labels than a given number, and labels are given out in order.

J. Zhang et al., "PFLlib: A Beginner-Friendly and Comprehensive Personalized Federated Learning Library and Benchmark",
JMLR 2025: its `pat` partition, balanced or not.
"""

import math
from typing import Literal

import numpy as np
from pydantic import Field

from fedstrata.datasets import Dataset
from fedstrata.experiment.sections import MAX_DEVICES
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Partition
from fedstrata.partitions.few_labels import few_labels
from fedstrata.partitions.stock import Counts, kinds_of

SIZES = 0x70617468  # purpose of random draws


class PathologicalPartition(Partition):
    """Give each label to the first devices that still lack labels, and divide its examples among them."""

    kind: Literal["pathological"]
    """`pathological`: labels in their order go to the first devices that lack labels, as in PFLlib."""
    devices: int = Field(ge=1, le=MAX_DEVICES)
    """Number of devices."""
    labels_per_device: int = Field(default=2, ge=1)
    """Largest number of labels of a device; the last devices can have fewer."""
    balanced: bool = False
    """If true, the devices of a label get equal parts; otherwise sizes are drawn, and the last device gets the rest."""
    minimum: int = Field(default=40, ge=1)
    """Lower bound of drawn sizes, times the number of labels (`least_samples` in PFLlib)."""

    @property
    def device_count(self) -> int:
        return self.devices

    def divide(self, dataset: Dataset, seed: int) -> Assignment:
        """Return examples for each device. Labels are divided in order, and the examples of a label in a random order.

        With `balanced: false`, the number of examples of a label that a device gets is drawn. This number is below the
        even part, at least a tenth of the even part, and at least `minimum` divided by the number of labels.
        """
        return few_labels(
            kinds_of(dataset, None), self.labels_per_device, seed, lambda sizes: self._counts(sizes, seed),
            "no example is left for device {device}: more devices have a label than it has examples; lower "
            "partition.devices or partition.labels_per_device",
        )  # fmt: skip

    def _counts(self, sizes: Counts, seed: int) -> Counts:
        """Draw how many examples of each label each device gets, shape (labels, devices)."""
        rng, counts = np.random.default_rng([seed, SIZES]), np.zeros((len(sizes), self.devices), np.int64)
        lacking = np.full(self.devices, self.labels_per_device)
        owners_of_a_label = math.ceil(self.devices / len(sizes) * self.labels_per_device)
        for label, size in enumerate(sizes):
            owners = np.flatnonzero(lacking > 0)[:owners_of_a_label]
            if not len(owners):
                break
            even = size / len(owners)
            others = len(owners) - 1
            if self.balanced:
                parts = np.full(others, int(even))
            else:
                low = min(int(max(even / 10, self.minimum / len(sizes))), int(even))
                parts = rng.integers(low, max(low + 1, int(even)), others)
            counts[label, owners] = [*parts, size - parts.sum()]
            lacking[owners] -= 1
        return counts
