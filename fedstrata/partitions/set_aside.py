"""Examples that a split does not use for training: shares of each device's own examples for tests and for validation,
and public examples that no device owns.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedstrata.datasets import Dataset
from fedstrata.errors import DataError
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Partition
from fedstrata.partitions.local_data import LocalPartition
from fedstrata.partitions.public_examples import public_examples
from fedstrata.partitions.stock import Indices
from fedstrata.partitions.tests_of_devices import TEST_SETS

HELD_OUT, VALIDATION = 0x67726F05, 0x67726F07  # purposes of random draws, with the index of a device


def with_set_aside(split: Assignment, partition: Partition, dataset: Dataset, seed: int) -> Assignment:
    """Choose public examples, and examples for tests and validation from the devices' own data, if the partition asks
    for them. Return the new split.

    Raises:
        ExperimentError: the data set lacks a label that `partition.public` names. Or the test set needs unchanged
            examples, but some devices have changed examples, such as rotated images.
        DataError: too few examples are left for the public set, or a device has too few examples for tests.
    """
    aside = split if partition.test_share is None else _with_own_tests(split, partition, seed)
    aside = aside if partition.validation_share is None else _with_validation(aside, partition, seed)
    tests = TEST_SETS[partition.test_set]
    if tests.are_of_data_set and partition.test_share is None and not len(dataset.test):
        raise DataError(
            "the data have no test examples; set partition.test_share, the share that devices keep for tests"
        )
    aside = replace(aside, public=public_examples(partition, split, dataset, seed))
    return tests.chosen(aside, partition, dataset, seed)


def _with_own_tests(split: Assignment, partition: Partition, seed: int) -> Assignment:
    """Return the split in which a share of each device's examples is its test data."""
    parts = [own_tests(partition, indices, seed, device) for device, indices in enumerate(split.train)]
    train, test = ([part[place] for part in parts] for place in (0, 1))
    return replace(split, train=train, test=test, tests_on_training_data=True)


def _with_validation(split: Assignment, partition: Partition, seed: int) -> Assignment:
    """Return the split in which a share of each device's training examples is for validation, not for training."""
    share = _Share("validation_share", "validate", partition.validation_share or 0.0, VALIDATION)
    parts = [_parted(partition, indices, seed, device, share) for device, indices in enumerate(split.train)]
    train, validation = ([part[place] for part in parts] for place in (0, 1))
    return replace(split, train=train, validation=validation)


def own_tests(
    partition: Partition | LocalPartition, indices: Indices, seed: int, device: int
) -> tuple[Indices, Indices]:
    """Divide a device's examples into training and test examples, and return both. `partition.test_share` gives the
    share for tests, rounded to a whole number of examples.

    Raises:
        DataError: no examples are left to train on, or to test on.
    """
    share = _Share("test_share", "test", partition.test_share or 0.0, HELD_OUT)
    return _parted(partition, indices, seed, device, share)


@dataclass(frozen=True)
class _Share:
    """Hold a share of a device's examples: its key, what it is for, and the purpose of its random draw."""

    key: str
    verb: str
    value: float
    purpose: int


def _parted(
    partition: Partition | LocalPartition, indices: Indices, seed: int, device: int, share: _Share
) -> tuple[Indices, Indices]:
    """Divide a device's examples into those that remain and the share that is set aside, and return both."""
    aside = round(share.value * len(indices))
    if aside in {0, len(indices)}:
        is_lone = len(indices) == 1
        counted = "only example" if is_lone else f"{len(indices)} examples"
        advice = "give the device at least 2, or leave it out" if is_lone else f"change {share.key}, or give it more"
        ids = partition.device_ids
        raise DataError(
            f"partition.{share.key} {share.value:g} of the {counted} of device {ids[device] if ids else device} leaves "
            f"{len(indices) - aside} to train on and {aside} to {share.verb} on; {advice}"
        )
    if partition.test_from == "end":
        order = np.sort(indices)
        return order[:-aside], order[-aside:]
    order = np.random.default_rng([seed, share.purpose, device]).permutation(indices)
    return order[aside:], order[:aside]
