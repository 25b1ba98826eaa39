"""Partitions as a user writes them: a good one, and some with faults."""

import numpy as np

from fedstrata.partitions import Assignment, Partition, kinds_of, tests_like


class Halves(Partition):
    """The first device has a share of all examples, and the others divide the rest."""

    devices: int = 3
    """Number of devices."""
    share: float = 0.5

    @property
    def device_count(self):
        return self.devices

    def divide(self, dataset, seed):
        order = np.random.default_rng([seed, 0x68616C66]).permutation(len(dataset.train))
        first = int(self.share * len(order))
        train = [order[:first], *np.array_split(order[first:], self.devices - 1)]
        return Assignment(train=train, test=tests_like(train, kinds_of(dataset, None), seed))


class Twice(Halves):
    """Two devices have the same examples."""

    def divide(self, dataset, seed):
        found = super().divide(dataset, seed)
        return Assignment(train=[found.train[0], *found.train[:-1]], test=found.test)


class Fractions(Halves):
    """Indices are floats, as after a division."""

    def divide(self, dataset, seed):
        found = super().divide(dataset, seed)
        return Assignment(train=[each / 1 for each in found.train], test=found.test)


class Nothing(Halves):
    """The division has no `return`."""

    def divide(self, dataset, seed):
        super().divide(dataset, seed)


class Broken(Halves):
    def divide(self, dataset, seed):
        return dataset["train"]


class Listed(Halves):
    """A value that can change, by which no assignment can be kept."""

    seats: list[int]


class Countless(Halves):
    devices: int = 0


class Absent(Halves):
    @property
    def device_count(self):
        raise KeyError("devices")


class NoPartition:
    pass
