"""Public examples, which no device owns."""

import numpy as np

from fedstrata.datasets import Dataset
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment.partition import PublicSettings
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Partition
from fedstrata.partitions.stock import Counts, Indices, Stock, labels_or_one_kind, level, no_indices

PUBLIC = 0x67726F06  # purpose of random draws, with the index of a label


def public_examples(partition: Partition, split: Assignment, dataset: Dataset, seed: int) -> Indices:
    """Choose public examples from the examples that no device takes. So devices own the same examples as without
    public examples. Return their indices in the part of the data that `public.source` names.

    Raises:
        ExperimentError: the data set lacks a label that `partition.public` names.
        DataError: devices leave too few examples.
    """
    public = partition.public
    if public is None:
        return no_indices()
    kinds = labels_or_one_kind(dataset)
    if public.source == "train":
        return _chosen(public, kinds.train, np.concatenate(split.train), kinds.count, seed)
    are_taken = partition.test_share is None and not public.tests
    owned = np.concatenate(split.test) if are_taken else no_indices()
    return _chosen(public, kinds.test, owned, kinds.count, seed)


def _chosen(settings: PublicSettings, part: Indices, owned: Indices, num_classes: int, seed: int) -> Indices:
    labels = part.copy()
    labels[owned] = -1
    stock = Stock(labels, num_classes, [seed, PUBLIC])
    available = _available(settings, stock.left)
    if settings.examples > available.sum():
        of_labels = "" if settings.labels is None else f" of labels {list(settings.labels)}"
        raise DataError(
            f"partition.public needs {settings.examples} examples{of_labels}, but devices leave {available.sum()} of "
            f"the {settings.source} data; lower partition.public.examples or {_what_else(settings.source)}"
        )
    return stock.take(level(settings.examples, available))


def _available(settings: PublicSettings, left: Counts) -> Counts:
    if settings.labels is None:
        return left
    if max(settings.labels) >= len(left):
        raise ExperimentError(
            f"partition.public.labels: the data set has no label {max(settings.labels)}; "
            f"its labels go from 0 to {len(left) - 1}"
        )
    available = np.zeros_like(left)
    available[list(settings.labels)] = left[list(settings.labels)]
    return available


def _what_else(source: str) -> str:
    if source == "train":
        return "examples_per_device"
    return "let devices test on their own data with partition.test_share"
