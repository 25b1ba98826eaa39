"""Test sets: the examples on which each device measures models. Each class is one test set. A test is one example."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedstrata.datasets import Dataset
from fedstrata.errors import ExperimentError
from fedstrata.experiment.partition import TestSetName
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Partition
from fedstrata.partitions.stock import TEST_ORDER, apportioned, labels_or_one_kind


class OwnTests:
    """Let each device measure on examples that are like its own. The partition's kind, or `test_share`, has chosen
    them.
    """

    are_of_data_set: ClassVar[bool] = True
    """True if the data set's tests are used, except with `test_share`."""

    def chosen(self, split: Assignment, partition: Partition, dataset: Dataset, seed: int) -> Assignment:
        """Return the split with the test examples of each device. The public examples of `split` are chosen already.
        Raises ExperimentError if the test set does not fit the partition.
        """
        return split


class GlobalTests(OwnTests):
    """Let the devices together measure on all tests of the data set. Each test belongs to one device, and parts differ
    by at most one test. So all devices together count the correct answers on the whole test set.
    """

    def chosen(self, split: Assignment, partition: Partition, dataset: Dataset, seed: int) -> Assignment:
        """Return the split with the data set's tests, in an order drawn from the seed, dealt out to the devices."""
        _check_unchanged(split, "partition.tests global")
        order = np.random.default_rng([seed, TEST_ORDER]).permutation(len(dataset.test))
        devices = len(split.train)
        return replace(split, test=[order[device::devices] for device in range(devices)])


class AlikeTests(OwnTests):
    """Divide the tests of each label among the devices, in proportion to their training examples of this label. Each
    test belongs to one device, except tests of labels that no device trains on.
    """

    def chosen(self, split: Assignment, partition: Partition, dataset: Dataset, seed: int) -> Assignment:
        """Return the split with tests that are divided like the training examples."""
        kinds = labels_or_one_kind(dataset)
        held = np.array([np.bincount(kinds.train[indices], minlength=kinds.count) for indices in split.train])
        parts = []
        for label in range(kinds.count):
            pile = np.flatnonzero(kinds.test == label)
            order = np.random.default_rng([seed, TEST_ORDER, label]).permutation(pile)
            ends = np.cumsum(apportioned(len(pile), held[:, label]))
            parts.append([order[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)])
        return replace(split, test=[np.concatenate(of_labels) for of_labels in zip(*parts, strict=True)])


class ValidationExamples(OwnTests):
    """Let each device measure on its examples for validation, which are not test examples."""

    are_of_data_set = False

    def chosen(self, split: Assignment, partition: Partition, dataset: Dataset, seed: int) -> Assignment:
        """Return the split with the validation examples in place of test examples."""
        return replace(split, test=split.validation, tests_on_training_data=True)


class PublicTests(OwnTests):
    """Let each device measure on the public examples with labels from its training data."""

    are_of_data_set = False

    def chosen(self, split: Assignment, partition: Partition, dataset: Dataset, seed: int) -> Assignment:
        """Return the split with public examples as the tests of devices."""
        _check_unchanged(split, "partition.public.tests")
        kinds = labels_or_one_kind(dataset)
        is_train = partition.public is not None and partition.public.source == "train"
        part = kinds.train if is_train else kinds.test
        found = split.public
        own = [np.unique(kinds.train[indices]) for indices in split.train]
        tests = [found[np.isin(part[found], labels)] for labels in own]
        return replace(split, test=tests, tests_on_training_data=is_train)


TEST_SETS: Mapping[TestSetName, OwnTests] = {
    "own": OwnTests(),
    "global": GlobalTests(),
    "alike": AlikeTests(),
    "validation": ValidationExamples(),
    "public": PublicTests(),
}


def _check_unchanged(split: Assignment, key: str) -> None:
    if any(shift.changes for shift in split.shifts or ()):
        raise ExperimentError(
            f"{key} needs unchanged data, but rotation, label_permutation or noise changes the data of some devices; "
            "remove one of both"
        )
