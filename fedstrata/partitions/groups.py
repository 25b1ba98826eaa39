"""Partition `groups`: groups of devices differ in their labels or label shares, or have rotated images or renamed
labels.
"""

from collections.abc import Iterator

import numpy as np

from fedstrata.datasets import Dataset
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment.partition import Group, GroupPartition
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.shifts import Shift, shift_of
from fedstrata.partitions.stock import (
    DISJOINT_LABELS,
    GROUP_SHARES,
    LABEL_CHOICE,
    LABEL_SHARES,
    SIZES,
    TRAIN_ORDER,
    Counts,
    Indices,
    Shares,
    Stock,
    drawn,
    drift,
    kinds_of,
    level,
    tests_like,
)


def by_group(partition: GroupPartition, dataset: Dataset, seed: int) -> Assignment:
    """Return examples for each device with the labels of its group. Devices draw in index order, without replacement.

    Test examples have the label shares of the device's training examples, and the same shift.
    """
    kinds = kinds_of(dataset, partition.by)
    stock = Stock(kinds.train, kinds.count, [seed, TRAIN_ORDER])
    train: list[Indices] = []
    wanted: list[Shares] = []
    shifts: list[Shift] = []
    for index, group in enumerate(partition.groups):
        where = f"partition.groups.{index}"
        shifts += [shift_of(group, dataset.info, seed=seed, where=where)] * group.devices
        for labels in _labels_of_devices(group, kinds.count, [seed, index, len(train)], where):
            counts, shares = _taken(group, labels, stock.left, [seed, index, len(train)], where)
            train.append(stock.take(counts))
            wanted.append(shares)
    return Assignment(
        train=train, test=tests_like(train, kinds, seed), shifts=shifts, drift=drift(train, wanted, kinds)
    )


def _labels_of_devices(group: Group, num_classes: int, place: list[int], where: str) -> Iterator[Indices]:
    """Yield the labels that each device of the group may have. `place` has the numbers that determine the random draw:
    seed, group and first device.
    """
    seed, group_index, first = place
    labels = _labels_of(group, num_classes, where)
    number = group.labels_per_device or len(labels)
    if group.disjoint_labels:
        order = np.random.default_rng([seed, DISJOINT_LABELS, group_index]).permutation(labels)
        yield from order[: group.devices * number].reshape(group.devices, number)
        return
    for device in range(first, first + group.devices):
        yield np.random.default_rng([seed, LABEL_CHOICE, device]).permutation(labels)[:number]


def _labels_of(group: Group, num_classes: int, where: str) -> Indices:
    """Return the labels from which the group's devices draw. Raises ExperimentError if the data set lacks one of them,
    or if the devices need more labels than the group has.
    """
    labels = np.arange(num_classes) if group.labels is None else np.array(group.labels)
    if labels.max() >= num_classes:
        raise ExperimentError(
            f"{where}.labels: the data set has no label {labels.max()}; its labels go from 0 to {num_classes - 1}"
        )
    number = group.labels_per_device or 1
    if number > len(labels):
        raise ExperimentError(f"{where}.labels_per_device is {number}, but there are {len(labels)} labels; lower it")
    if group.disjoint_labels and group.devices * number > len(labels):
        raise ExperimentError(
            f"{where}.disjoint_labels: {group.devices} devices with {number} labels each need "
            f"{group.devices * number} labels, but there are {len(labels)}; lower labels_per_device or devices"
        )
    return labels


def _taken(group: Group, labels: Indices, left: Counts, place: list[int], where: str) -> tuple[Counts, Shares]:
    """Return how many of the remaining examples of each label a device takes, and the shares of labels that it wants.
    `place` has the numbers that determine the random draw: seed, group and device.
    """
    seed, group_index, device = place
    available = np.zeros_like(left)
    available[labels] = left[labels]
    total = _size(group, np.random.default_rng([seed, SIZES, device]))
    if total > available.sum():
        raise DataError(
            f"device {device} of group {group.name} needs {total} examples of labels {sorted(labels.tolist())}, but "
            f"the training data has {available.sum()} left; lower {where}.examples_per_device"
        )
    shares = np.zeros(len(left))
    if group.concentration is None:
        shares[labels] = 1 / len(labels)
        return level(total, available), shares
    own = np.random.default_rng([seed, LABEL_SHARES, device])
    law = np.random.default_rng([seed, GROUP_SHARES, group_index]) if group.same_shares else own
    shares[np.sort(labels)] = law.dirichlet(np.full(len(labels), group.concentration))
    return drawn(own, total, shares, available), shares


def _size(group: Group, rng: np.random.Generator) -> int:
    """Return the number of examples of one device: the group's number, or a uniform draw from the group's range."""
    if isinstance(group.examples_per_device, int):
        return group.examples_per_device
    least, most = group.examples_per_device
    return int(rng.integers(least, most, endpoint=True))
