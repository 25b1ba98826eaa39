"""Own data with an owner for each example, and an own model, for tests of the memory of devices."""

import numpy as np
from torch import nn

from fedstrata.datasets import Dataset, Examples

PIXELS = (1, 28, 28)


class Net(nn.Sequential):
    """A usual small network with 46,730 weights."""

    def __init__(self) -> None:
        convolutions = (
            nn.Conv2d(1, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        super().__init__(*convolutions, nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))


class Items:
    """A map-style data set of 20,000 rows with 784 numbers, 60 MiB."""

    def __init__(self, number: int) -> None:
        self.rows, self.targets = np.zeros((number, 784), np.float32), np.arange(number) % 10

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.rows[index], int(self.targets[index])


def owned(inputs: np.ndarray | Items, owners: np.ndarray) -> Examples:
    columns = {"owner": owners.astype(np.int64)}
    if isinstance(inputs, Items):
        return Examples.of_items(inputs, columns=columns)
    return Examples(inputs=inputs, labels=np.arange(len(inputs)) % 10, columns=columns)


def pixels(_: object = None) -> Dataset:
    """6,000 images of bytes to train on, and 10,000 to test on, for 100 devices."""
    train, test = (np.zeros((number, *PIXELS), np.uint8) for number in (6_000, 10_000))
    return Dataset(
        train=owned(train, np.arange(6_000) % 100), test=owned(test, np.arange(10_000) % 100), num_classes=10
    )


def skewed(_: object = None) -> Dataset:
    """20,000 images of floats; the first of 20 devices has 10,500 of them."""
    owners = np.where(np.arange(20_000) < 10_000, 0, np.arange(20_000) % 20)
    test = owned(np.zeros((2_000, *PIXELS), np.float32), np.arange(2_000) % 20)
    return Dataset(train=owned(np.zeros((20_000, *PIXELS), np.float32), owners), test=test, num_classes=10)


def views(_: object = None) -> Dataset:
    """Parts of one array, which stays in memory as a whole: 30,000 rows."""
    rows = np.zeros((30_000, 784), np.float32)
    train, test = owned(rows[:3_000], np.arange(3_000) % 10), owned(rows[-500:], np.arange(500) % 10)
    return Dataset(train=train, test=test, num_classes=10)


def items(_: object = None) -> Dataset:
    """A map-style data set. Devices read its rows when they need them."""
    train, test = owned(Items(20_000), np.arange(20_000) % 10), owned(Items(500), np.arange(500) % 10)
    return Dataset(train=train, test=test, num_classes=10)
