"""Partition `tasks`: most examples of a device are from its own task, and a smaller part (the minority) is from other
tasks.
"""

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets import Dataset
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment.partition import TaskPartition
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.stock import TEST_ORDER, TRAIN_ORDER, Counts, Indices, Stock, kinds_of, level


def by_task(partition: TaskPartition, dataset: Dataset, seed: int) -> Assignment:
    """Return each device's examples: most from its own task, and a smaller part (the minority) from other tasks. Test
    examples are only from its own task.

    The examples from devices' own tasks are taken first. Examples are sorted by label and dealt to the devices of a
    task in turn. So these devices differ by at most one example per label, both in their own task and in the minority.
    """
    kinds = kinds_of(dataset, partition.by)
    _check_labels(partition, kinds.count)
    stock = Stock(kinds.train, kinds.count, [seed, TRAIN_ORDER])
    own = [stock.take(counts) for counts in _own_counts(partition, stock.left)]
    foreign = [stock.take(counts) for counts in _minority_counts(partition, stock.left)]
    held_out = Stock(kinds.test, kinds.count, [seed, TEST_ORDER])
    train: list[Indices] = []
    test: list[Indices] = []
    for index, task in enumerate(partition.tasks):
        test_deck = held_out.take(np.where(_labels_of(partition, kinds.count) == index, held_out.sizes, 0))
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

    The numbers are as equal as the data allow. Tasks take their examples one after the other, and no task may use its
    own labels. So of what a task leaves, a later task cannot use the examples with its own labels, its `stock`. The
    rest is enough for it if the task has taken at least `owed` examples from this stock. By Hall's theorem, all tasks
    then get their examples, if any assignment makes this possible. If none does, `_check_minority` raises DataError
    first.
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
