"""Partitions `natural` and `given`: the data, or the experiment, say which device owns which examples."""

from pathlib import Path

import numpy as np

from fedstrata.datasets import Dataset
from fedstrata.errors import DataError
from fedstrata.experiment.partition import GivenPartition, NaturalPartition
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.stock import Indices, labels_or_one_kind, tests_like
from fedstrata.store.named_files import check_named

MOST_NAMED = 5


def by_column(partition: NaturalPartition, dataset: Dataset, seed: int) -> Assignment:
    """Return the training and test examples of each device. They are the examples with the device's value in the column
    `partition.by`.
    """
    train, test = dataset.train.column(partition.by), dataset.test.column(partition.by)
    values = list(dataset.values(partition.by))
    places = _places(partition, [values[place] for place in np.union1d(train, test)])
    owners = [values.index(name) for name in places]
    split = [np.flatnonzero(train == owner) for owner in owners]
    for name, indices in zip(places, split, strict=True):
        if not len(indices):
            raise DataError(
                f"device {name} has no training examples: column {partition.by} does not contain {name}; add examples, "
                "or remove the device"
            )
    return Assignment(train=split, test=[np.flatnonzero(test == owner) for owner in owners])


def _places(partition: NaturalPartition, found: list[str]) -> list[str]:
    """Return, for each device, the value of the column `partition.by` that marks the device's examples. `found` has the
    values in the data. Raises DataError if these are not the values, or not as many values, as `partition` states.
    """
    some = ", ".join(found[:MOST_NAMED]) + (" …" if len(found) > MOST_NAMED else "")
    if partition.names is None:
        if len(found) != partition.devices:
            raise DataError(
                f"column {partition.by} has {len(found)} values ({some}), but partition.devices is "
                f"{partition.devices}; set it to {len(found)}, or list the values that you want in partition.names"
            )
        return found
    if missing := [name for name in partition.names if name not in found]:
        raise DataError(f"column {partition.by} has no value {missing[0]} of partition.names; its values are {some}")
    return list(partition.names)


def as_given(partition: GivenPartition, dataset: Dataset, seed: int) -> Assignment:
    """Return the training examples that are listed for each device, and test examples with the same label shares."""
    total = len(dataset.train)
    train = _listed(partition, total) if partition.file is None else _owned(partition, partition.file, total)
    return Assignment(train=train, test=tests_like(train, labels_or_one_kind(dataset), seed))


def _listed(partition: GivenPartition, total: int) -> list[Indices]:
    train = [np.array(indexes, np.int64) for indexes in partition.examples or ()]
    highest = max(int(indexes.max()) for indexes in train)
    if highest >= total:
        raise DataError(f"partition.examples names example {highest}; the training data have examples 0 to {total - 1}")
    return train


def _owned(partition: GivenPartition, path: Path, total: int) -> list[Indices]:
    check_named(path, partition.file_sha256, "partition.file")
    try:
        owners = np.array([int(line) for line in path.read_text("utf-8").split()], np.int64)
    except (OSError, ValueError, OverflowError) as error:
        raise DataError(
            f"cannot use partition.file {path}: {error}; it must have the index of a device on each line"
        ) from None
    devices = partition.device_count
    if len(owners) != total:
        raise DataError(
            f"partition.file {path} has {len(owners)} lines, but there are {total} training examples; write one line "
            "for each"
        )
    if owners.max() >= devices or owners.min() < -1:
        wrong = owners.max() if owners.max() >= devices else owners.min()
        raise DataError(
            f"partition.file {path} names device {wrong}; devices are 0 to {devices - 1}, and -1 means no device"
        )
    train = [np.flatnonzero(owners == device) for device in range(devices)]
    for device, indices in enumerate(train):
        if not len(indices):
            raise DataError(f"partition.file {path} gives device {device} no example; give it at least one")
    return train
