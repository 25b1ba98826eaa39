"""Examples that a split does not use for training: a share of each device's own examples for tests, and public examples
that no device owns.
"""

from dataclasses import replace

import numpy as np

from fedstrata.datasets import Dataset
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment.partition import PublicSettings
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Partition
from fedstrata.partitions.local_data import LocalPartition
from fedstrata.partitions.stock import (
    Counts,
    Indices,
    Kinds,
    Stock,
    labels_or_one_kind,
    level,
    no_indices,
)

# Purposes of random draws: HELD_OUT with the index of a device, PUBLIC with the index of a label.
HELD_OUT, PUBLIC = 0x67726F05, 0x67726F06


def with_set_aside(split: Assignment, partition: Partition, dataset: Dataset, seed: int) -> Assignment:
    """Choose public examples, and test examples from the devices' own data, if the partition asks for them. Return the
    new split.

    Public examples are chosen from the examples that no device takes. So devices own the same examples as without
    public examples.

    Raises:
        ExperimentError: the data set lacks a label that `partition.public` names. Or devices must test on public
            examples, but some devices have changed examples, such as rotated images.
        DataError: too few examples are left for the public set, or a device has too few examples for tests.
    """
    share = partition.test_share
    aside = split if share is None else _with_own_tests(split, partition, seed)
    tests_on_public = partition.public is not None and partition.public.tests
    if share is None and not len(dataset.test) and not tests_on_public:
        raise DataError(
            "the data have no test examples; set partition.test_share, the share that devices keep for tests"
        )
    if partition.public is None:
        return aside
    kinds = labels_or_one_kind(dataset)
    if partition.public.tests:
        return _with_public_tests(aside, partition.public, kinds, seed)
    if partition.public.source == "train":
        owned, part = split.train, kinds.train
    else:
        owned, part = split.test if share is None else [no_indices()], kinds.test
    return replace(aside, public=_public(partition.public, part, np.concatenate(owned), kinds.count, seed))


def _with_public_tests(split: Assignment, public: PublicSettings, kinds: Kinds, seed: int) -> Assignment:
    """Choose the public examples, and let devices test on them. Return the new split, without other test examples.

    Each device tests on those public examples that have a label from its training data. Raises ExperimentError if the
    experiment changes the data of some devices, such as by rotation.
    """
    if any(shift.changes for shift in split.shifts or ()):
        raise ExperimentError(
            "partition.public.tests needs unchanged data, but rotation or label_permutation changes the data of some "
            "devices; remove one of both"
        )
    part, owned = (kinds.train, split.train) if public.source == "train" else (kinds.test, [no_indices()])
    found = _public(public, part, np.concatenate(owned), kinds.count, seed)
    own = [np.unique(kinds.train[indices]) for indices in split.train]
    tests = [found[np.isin(part[found], labels)] for labels in own]
    return replace(split, public=found, test=tests, tests_on_training_data=public.source == "train")


def _with_own_tests(split: Assignment, partition: Partition, seed: int) -> Assignment:
    """Return the split in which a share of each device's examples is its test data."""
    parts = [own_tests(partition, indices, seed, device) for device, indices in enumerate(split.train)]
    train, test = ([part[place] for part in parts] for place in (0, 1))
    return replace(split, train=train, test=test, tests_on_training_data=True)


def own_tests(
    partition: Partition | LocalPartition, indices: Indices, seed: int, device: int
) -> tuple[Indices, Indices]:
    """Divide a device's examples into training and test examples, and return both. `partition.test_share` gives the
    share for tests, rounded to a whole number of examples.

    Raises:
        DataError: no examples are left to train on, or to test on.
    """
    share = partition.test_share or 0.0
    held_out = round(share * len(indices))
    if held_out in {0, len(indices)}:
        is_lone = len(indices) == 1
        counted = "only example" if is_lone else f"{len(indices)} examples"
        advice = "give the device at least 2, or leave it out" if is_lone else "change test_share, or give it more"
        ids = partition.device_ids
        raise DataError(
            f"partition.test_share {share:g} of the {counted} of device {ids[device] if ids else device} leaves "
            f"{len(indices) - held_out} to train on and {held_out} to test on; {advice}"
        )
    if partition.test_from == "end":
        order = np.sort(indices)
        return order[:-held_out], order[-held_out:]
    order = np.random.default_rng([seed, HELD_OUT, device]).permutation(indices)
    return order[held_out:], order[:held_out]


def _public(settings: PublicSettings, part: Indices, owned: Indices, num_classes: int, seed: int) -> Indices:
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
