"""The common part of the partitions that give each device examples of a few labels."""

from collections.abc import Callable

import numpy as np

from fedstrata.errors import DataError, ExperimentError
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.stock import TRAIN_ORDER, Counts, Kinds, Stock, tests_like


def few_labels(
    kinds: Kinds, labels_per_device: int, seed: int, counts_of: Callable[[Counts], Counts], no_example: str
) -> Assignment:
    """Return examples for each device. `counts_of` takes the number of examples of each label, and returns how many of
    these examples each device gets, shape (labels, devices).

    Raises:
        ExperimentError: there are fewer labels than `labels_per_device`.
        DataError: a device gets no example. `no_example` is the message, with `{device}` for its index.
    """
    if labels_per_device > kinds.count:
        raise ExperimentError(
            f"partition.labels_per_device is {labels_per_device}, but there are {kinds.count} labels; lower it"
        )
    stock = Stock(kinds.train, kinds.count, [seed, TRAIN_ORDER])
    counts = counts_of(stock.sizes)
    for device in np.flatnonzero(counts.sum(axis=0) == 0)[:1]:
        raise DataError(no_example.format(device=device))
    train = [stock.take(of_device) for of_device in counts.T]
    return Assignment(train=train, test=tests_like(train, kinds, seed))
