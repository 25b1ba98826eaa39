"""Partition `groups`: groups of devices differ in their labels or label shares, or have rotated images or renamed
labels.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from fedstrata.datasets import Dataset, DatasetInfo
from fedstrata.datasets.turning import check_rotation
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment.partition import Labels
from fedstrata.experiment.sections import MAX_DEVICES, Settings
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Name, Partition
from fedstrata.partitions.shifts import GroupShift, Shift
from fedstrata.partitions.stock import (
    LABEL_SHARES,
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

Size = Annotated[int, Field(ge=1)]
# Purposes of random draws, with the index of a device, or of a group for DISJOINT_LABELS and GROUP_SHARES. The index of
# LABEL_PERMUTATION is the number of the permutation.
SIZES, LABEL_CHOICE, DISJOINT_LABELS, GROUP_SHARES, LABEL_PERMUTATION = range(0x67726F00, 0x67726F05)


class Group(Settings):
    """Define a group of devices with data from one distribution: their labels, and the changes to their examples."""

    name: Name
    """Name of the group: small letters, digits, `-` and `_`."""
    devices: int = Field(ge=1, le=MAX_DEVICES)
    """Number of devices; devices are numbered group by group."""
    examples_per_device: Size | tuple[Size, Size]
    """Number of training examples of each device, or a range such as `[32, 128]` from which each device draws its
    number.
    """
    labels: Labels | None = None
    """Labels of the group's devices, before `label_permutation`; without this key all labels."""
    labels_per_device: int | None = Field(default=None, ge=1)
    """Number of labels that each device draws from `labels`; without this key a device has all of them."""
    disjoint_labels: bool = False
    """If true, two devices of the group never draw the same label."""
    concentration: float | None = Field(default=None, gt=0)
    """Concentration of the Dirichlet distribution from which label shares are drawn; without this key labels are as
    even as possible.
    """
    same_shares: bool = False
    """If true, all devices of the group have the same label shares, from one Dirichlet draw."""
    rotation: Literal[0, 90, 180, 270] = 0
    """Degrees by which images are rotated counter-clockwise."""
    label_permutation: Annotated[int, Field(ge=0)] | tuple[int, ...] | None = None
    """Change of labels: a list with the new label for each label, or a number that selects a random permutation."""

    @field_validator("examples_per_device", mode="before")
    @classmethod
    def _number_or_range(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and len(value) != 2:
            raise ValueError(f"give a number or a range [least, most], not {list(value)}")
        return value

    @field_validator("examples_per_device")
    @classmethod
    def _ordered(cls, value: int | tuple[int, int]) -> int | tuple[int, int]:
        if isinstance(value, tuple) and value[0] > value[1]:
            raise ValueError(f"a range must have the smaller number first, not {list(value)}")
        return value

    @field_validator("label_permutation")
    @classmethod
    def _permutation(cls, value: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        if isinstance(value, tuple) and sorted(value) != list(range(len(value))):
            raise ValueError(f"a permutation must have each label from 0 on once, such as [1, 2, 0], not {list(value)}")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.disjoint_labels and self.labels_per_device is None:
            raise ValueError("disjoint_labels needs labels_per_device, which is missing; add it")
        if self.same_shares and self.concentration is None:
            raise ValueError("same_shares needs concentration, which is missing; add it")
        if self.same_shares and self.labels_per_device is not None:
            raise ValueError("same_shares needs devices with the same labels; remove labels_per_device")
        return self


class GroupPartition(Partition):
    """Divide devices into groups that differ in labels, label shares, orientation of images or meaning of labels."""

    kind: Literal["groups"]
    """`groups`: devices of a group draw their data from one distribution."""
    groups: tuple[Group, ...] = Field(min_length=1)
    """Groups of devices."""
    by: str | None = None
    """Column that replaces the labels in this partition; without it the labels are used."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [group.name for group in self.groups]
        if len(set(names)) != len(names):
            raise ValueError(f"each group needs a different name, and these are {names}; rename one")
        return self

    @property
    def device_count(self) -> int:
        return sum(group.devices for group in self.groups)

    @property
    def most_examples(self) -> int:
        """The largest number of training examples that a device can have."""
        sizes = [group.examples_per_device for group in self.groups]
        return max(size if isinstance(size, int) else size[1] for size in sizes)

    @property
    def least_examples(self) -> int:
        """The smallest number of examples that a device can have, its test examples included."""
        sizes = [group.examples_per_device for group in self.groups]
        return min(size if isinstance(size, int) else size[0] for size in sizes)

    @property
    def true_groups(self) -> list[str] | None:
        """The name of each device's group, in index order. With a single group it is None, because then there are no
        groups to find.
        """
        if len(self.groups) == 1:
            return None
        return [group.name for group in self.groups for _ in range(group.devices)]

    def divide(self, dataset: Dataset, seed: int) -> Assignment:
        """Return examples for each device with the labels of its group. Devices draw in index order, without
        replacement.

        Test examples have the label shares of the device's training examples, and the same shift.
        """
        kinds = kinds_of(dataset, self.by)
        stock = Stock(kinds.train, kinds.count, [seed, TRAIN_ORDER])
        train: list[Indices] = []
        wanted: list[Shares] = []
        shifts: list[Shift] = []
        for index, group in enumerate(self.groups):
            where = f"partition.groups.{index}"
            shifts += [_shift_of(group, dataset.info, seed=seed, where=where)] * group.devices
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


def _shift_of(group: Group, info: DatasetInfo, *, seed: int, where: str) -> Shift:
    """Return the shift of a group.

    Args:
        group: the settings of the group.
        info: shape and classes of the data set.
        seed: the run's seed. If the group's `label_permutation` is a number, this number and the seed determine the
            permutation. So groups with the same number have the same permutation.
        where: the group's place in the experiment file, for the error.

    Raises:
        ExperimentError: the data are not images that can be rotated, or the permutation does not have the data set's
            number of labels.
    """
    if group.rotation:
        check_rotation(group.rotation, info.input_shape, f"{where}.rotation")
    return GroupShift(quarter_turns=group.rotation // 90, new_labels=_new_labels(group, info.num_classes, seed, where))


def _new_labels(group: Group, num_classes: int, seed: int, where: str) -> NDArray[np.int64] | None:
    asked = group.label_permutation
    if asked is None:
        return None
    if isinstance(asked, int):
        return np.random.default_rng([seed, LABEL_PERMUTATION, asked]).permutation(num_classes)
    if len(asked) != num_classes:
        raise ExperimentError(
            f"{where}.label_permutation lists {len(asked)} labels, but the data set has {num_classes}; "
            f"list each of 0 to {num_classes - 1} once"
        )
    return np.array(asked, np.int64)
