"""Partition `label_quantity`: each device has the same number of labels, called #C.

Q. Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022 (NIID-Bench), #C = k.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from fedstrata.datasets import Dataset
from fedstrata.experiment.sections import MAX_DEVICES
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Partition
from fedstrata.partitions.few_labels import few_labels
from fedstrata.partitions.stock import Counts, kinds_of, level

LABELS = 0x6C717479  # purpose of random draws, with the index of a device


class LabelQuantityPartition(Partition):
    """Give each device the same number of labels. The examples of a label are divided evenly among its devices."""

    kind: Literal["label_quantity"]
    """`label_quantity`: each device has the same number of labels (#C in NIID-Bench), and an even part of each."""
    devices: int = Field(ge=1, le=MAX_DEVICES)
    """Number of devices."""
    labels_per_device: int = Field(default=2, ge=1)
    """Number of labels of each device."""
    by: str | None = None
    """Column that replaces the labels in this partition; without it the labels are used."""

    @property
    def device_count(self) -> int:
        return self.devices

    def divide(self, dataset: Dataset, seed: int) -> Assignment:
        """Return examples for each device. The first label of device i is i modulo the number of labels. Its other
        labels are random. The examples of a label that no device has are not used.
        """
        return few_labels(
            kinds_of(dataset, self.by), self.labels_per_device, seed, lambda sizes: self._counts(sizes, seed),
            "the labels of device {device} have fewer examples than devices; lower partition.devices, or raise "
            "partition.labels_per_device",
        )  # fmt: skip

    def _counts(self, sizes: Counts, seed: int) -> Counts:
        """Return how many examples of each label each device gets, shape (labels, devices)."""
        has_label = np.zeros((len(sizes), self.devices), bool)
        for device in range(self.devices):
            own = device % len(sizes)
            others = np.delete(np.arange(len(sizes)), own)
            rng = np.random.default_rng([seed, LABELS, device])
            has_label[[own, *rng.permutation(others)[: self.labels_per_device - 1]], device] = True
        counts = np.zeros(has_label.shape, np.int64)
        for size, owners, row in zip(sizes, has_label, counts, strict=True):
            if owners.any():
                row[:] = level(int(size), np.where(owners, size, 0))
        return counts
