"""Partitions `dirichlet` and `iid`: every device draws its examples from all the training data."""

import numpy as np

from fedstrata.datasets import Dataset
from fedstrata.errors import DataError
from fedstrata.experiment.partition import DirichletPartition, IidPartition
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.stock import (
    LABEL_SHARES,
    TEST_ORDER,
    TRAIN_ORDER,
    Stock,
    drawn,
    drift,
    kinds_of,
    tests_like,
)


def by_dirichlet(partition: DirichletPartition, dataset: Dataset, seed: int) -> Assignment:
    """Return examples for each device. The label shares of each device are drawn from Dirichlet(concentration).

    Source: T.-M. H. Hsu, H. Qi and M. Brown, Measuring the Effects of Non-Identical Data Distribution for Federated
    Visual Classification, 2019, with a uniform prior over labels. The paper's α is `concentration` times the number of
    labels. Devices draw in index order, without replacement. If no example of a label is left, its share is given to
    the device's remaining labels, in proportion. If devices take nearly all the data, the last devices get the labels
    that others leave (`Assignment.drift`).
    """
    check_total(partition, len(dataset.train))
    kinds = kinds_of(dataset, partition.by)
    stock = Stock(kinds.train, kinds.count, [seed, TRAIN_ORDER])
    train, wanted = [], []
    for device_index in range(partition.devices):
        rng = np.random.default_rng([seed, LABEL_SHARES, device_index])
        shares = rng.dirichlet(np.full(kinds.count, partition.concentration))
        wanted.append(shares)
        train.append(stock.take(drawn(rng, partition.examples_per_device, shares, stock.left)))
    return Assignment(train=train, test=tests_like(train, kinds, seed), drift=drift(train, wanted, kinds))


def alike(partition: IidPartition, dataset: Dataset, seed: int) -> Assignment:
    """Return training examples that are drawn uniformly, each for one device only. The test examples are divided
    evenly.
    """
    check_total(partition, len(dataset.train))
    total = partition.devices * partition.examples_per_device
    drawn = np.random.default_rng([seed, TRAIN_ORDER]).permutation(len(dataset.train))[:total]
    held_out = np.random.default_rng([seed, TEST_ORDER]).permutation(len(dataset.test))
    return Assignment(
        train=list(drawn.reshape(partition.devices, partition.examples_per_device)),
        test=[held_out[index :: partition.devices] for index in range(partition.devices)],
    )


def check_total(partition: DirichletPartition | IidPartition, available: int) -> None:
    if partition.devices * partition.examples_per_device > available:
        raise DataError(
            f"the partition needs {partition.devices} x {partition.examples_per_device} examples, but the "
            f"training data has {available}; lower partition.devices or partition.examples_per_device"
        )
