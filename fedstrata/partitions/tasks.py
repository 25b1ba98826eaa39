"""Partition `tasks`: most examples of a device are from its own task, and a smaller part (the minority) is from other
tasks.
"""

from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedstrata.datasets import Dataset
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment.partition import Labels
from fedstrata.experiment.sections import MAX_DEVICES, Settings
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Name, Partition
from fedstrata.partitions.stock import TEST_ORDER, TRAIN_ORDER, Counts, Indices, Stock, kinds_of, level


class Task(Settings):
    """Define a learning task: its labels, and the devices that learn it."""

    name: Name
    """Name of the task: small letters, digits, `-` and `_`."""
    labels: Labels
    """Labels of the task; a label belongs to one task only."""
    devices: int = Field(ge=1, le=MAX_DEVICES)
    """Number of devices that learn the task; devices are numbered task by task."""
    examples_per_device: int = Field(ge=1)
    """Number of training examples of each device, including the examples of other tasks."""


class TaskPartition(Partition):
    """Give each device examples of which most belong to its own task, and a minority to the other tasks."""

    kind: Literal["tasks"] = "tasks"
    """`tasks`: each device has most examples from its own task and a minority from other tasks."""
    tasks: tuple[Task, ...] = Field(min_length=1)
    """Learning tasks, and the devices that learn each."""
    by: str | None = None
    """Column that replaces the labels in this partition; without it the labels are used."""
    minority_ratio: float = Field(default=0.1, ge=0, lt=0.5)
    """Share of a device's training examples that come from other tasks."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [task.name for task in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError(f"each task needs a different name, and these are {names}; rename one")
        labels = [label for task in self.tasks for label in task.labels]
        if len(set(labels)) != len(labels):
            raise ValueError("a label is listed in two tasks; remove it from one")
        return self

    @property
    def device_count(self) -> int:
        return sum(task.devices for task in self.tasks)

    @property
    def most_examples(self) -> int:
        """The number of training examples of the largest device."""
        return max(task.examples_per_device for task in self.tasks)

    @property
    def least_examples(self) -> int:
        """The number of examples of the smallest device, its test examples included."""
        return min(task.examples_per_device for task in self.tasks)

    @property
    def true_groups(self) -> list[str] | None:
        """The name of each device's task, in index order."""
        return [task.name for task in self.tasks for _ in range(task.devices)]

    def divide(self, dataset: Dataset, seed: int) -> Assignment:
        """Return each device's examples: most from its own task, and a smaller part (the minority) from other tasks.
        Test examples are only from its own task.

        The examples from devices' own tasks are taken first. Examples are sorted by label and dealt to the devices of a
        task in turn. So these devices differ by at most one example per label, both in their own task and in the
        minority.
        """
        kinds = kinds_of(dataset, self.by)
        _check_labels(self, kinds.count)
        stock = Stock(kinds.train, kinds.count, [seed, TRAIN_ORDER])
        own = [stock.take(counts) for counts in _own_counts(self, stock.left)]
        foreign = [stock.take(counts) for counts in _minority_counts(self, stock.left)]
        held_out = Stock(kinds.test, kinds.count, [seed, TEST_ORDER])
        train: list[Indices] = []
        test: list[Indices] = []
        for index, task in enumerate(self.tasks):
            test_deck = held_out.take(np.where(_labels_of(self, kinds.count) == index, held_out.sizes, 0))
            for seat in range(task.devices):
                hand = own[index][seat :: task.devices], foreign[index][seat :: task.devices]
                train.append(np.concatenate(hand))
                test.append(test_deck[seat :: task.devices])
        return Assignment(train=train, test=test)


def _labels_of(partition: TaskPartition, num_classes: int) -> NDArray[np.int64]:
    """Return the index of the task of each label. A label without a task has −1."""
    owner = np.full(num_classes, -1, dtype=np.int64)
    for index, task in enumerate(partition.tasks):
        owner[list(task.labels)] = index
    return owner


def _minority_sizes(partition: TaskPartition) -> list[int]:
    """Return, for each task, how many examples from other tasks each device of the task has."""
    if len(partition.tasks) == 1:
        return [0]
    return [round(task.examples_per_device * partition.minority_ratio) for task in partition.tasks]


def _own_counts(partition: TaskPartition, left: Counts) -> list[Counts]:
    """Return, for each task and each of its labels, how many examples with this label all devices of the task have
    together.

    The numbers are as equal as the data allow.
    """
    owner, counts = _labels_of(partition, len(left)), []
    for index, (task, minority) in enumerate(zip(partition.tasks, _minority_sizes(partition), strict=True)):
        available = np.where(owner == index, left, 0)
        own = task.examples_per_device - minority
        if task.devices * own > available.sum():
            raise DataError(
                f"task {task.name} needs {task.devices} x {own} examples of labels {list(task.labels)}, but "
                f"the training data has {available.sum()}; lower partition.tasks.{index}.examples_per_device"
            )
        counts.append(level(task.devices * own, available))
    return counts


def _minority_counts(partition: TaskPartition, left: Counts) -> list[Counts]:
    """Return, for each task and each label of other tasks, how many examples with this label all devices of the task
    have together.

    The numbers are as equal as the data allow. Tasks take examples one after the other, and no task may use its own
    labels. A later task cannot use the examples with its own labels, which are its `stock`. So each task first takes at
    least `owed` examples from the stock of each later task. The examples of other labels that remain are then enough
    for the later task.

    By Hall's theorem, all tasks get their examples, if any assignment makes this possible. If none does,
    `_check_minority` raises DataError first.
    """
    owner = _labels_of(partition, len(left))
    left = np.where(owner >= 0, left, 0)
    pairs = zip(partition.tasks, _minority_sizes(partition), strict=True)
    demands = [task.devices * minority for task, minority in pairs]
    _check_minority(partition, demands, left, owner)
    counts = []
    for index, demand in enumerate(demands):
        taken = np.zeros_like(left)
        for later in range(index + 1, len(demands)):
            stock = np.where(owner == later, left, 0)
            owed = demand + demands[later] + stock.sum() - left.sum()
            taken += level(max(0, int(owed)), stock)
        taken += level(demand - int(taken.sum()), np.where(owner == index, 0, left - taken))
        left = left - taken
        counts.append(taken)
    return counts


def _check_labels(partition: TaskPartition, num_classes: int) -> None:
    for index, task in enumerate(partition.tasks):
        if max(task.labels) >= num_classes:
            raise ExperimentError(
                f"partition.tasks.{index}.labels: the data set has no label {max(task.labels)}; "
                f"its labels go from 0 to {num_classes - 1}"
            )


def _check_minority(partition: TaskPartition, demands: list[int], left: Counts, owner: NDArray[np.int64]) -> None:
    for index, (task, demand) in enumerate(zip(partition.tasks, demands, strict=True)):
        others = left[owner != index].sum()
        if demand > others:
            raise DataError(
                f"task {task.name} needs {task.devices} x {demand // task.devices} minority examples, but the "
                f"other tasks leave {others}; lower partition.minority_ratio or their examples_per_device"
            )
    if sum(demands) > left.sum():
        raise DataError(
            f"the tasks need {sum(demands)} minority examples, but devices' examples of their own tasks leave "
            f"{left.sum()} of the training data; lower partition.minority_ratio or examples_per_device"
        )
