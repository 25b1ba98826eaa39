"""Data sets and experiments for tests of who owns which examples."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from fedstrata.datasets import Dataset, Examples, load_dataset
from fedstrata.datasets.fashion_mnist import DEBIAN
from fedstrata.experiment import DataSettings, Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.partitions import DeviceData, device_data

needs_fashion_mnist = pytest.mark.skipif(
    not DEBIAN.is_dir(), reason="Fashion-MNIST is not here: apt-get install dataset-fashion-mnist"
)

SMALL = """
name: small
partition:
  kind: tasks
  tasks:
    - {name: even, labels: [0, 2], devices: 2, examples_per_device: 10}
    - {name: odd, labels: [1, 3], devices: 1, examples_per_device: 10}
"""


@cache
def fashion_mnist() -> Dataset:
    """The real one, which takes a third of a second to read."""
    return load_dataset(DataSettings(name="fashion-mnist"), 0)


def numbered(train: list[int], test: list[int]) -> Dataset:
    """A data set with so many examples of each label, in which the input of an example is its index."""

    def part(counts: list[int]) -> Examples:
        labels = np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))
        return Examples(inputs=np.arange(len(labels), dtype=np.float32)[:, None], labels=labels)

    return Dataset(train=part(train), test=part(test), num_classes=len(train))


def experiment(partition: dict[str, Any], seed: int = 3, method: str = "one_shot") -> Experiment:
    data = {"name": "folder", "input_shape": [1], "num_classes": 2} if partition["kind"] == "local" else {}
    said = {"name": "split", "seed": seed, "data": data, "partition": partition, "method": method}
    return parse_experiment(yaml.safe_dump(said))


def all_devices(plan: Experiment, dataset: Dataset) -> list[DeviceData]:
    return [device_data(plan, dataset, index) for index in range(plan.device_count)]


def identities(parts: list[Examples]) -> list[int]:
    return [int(value) for part in parts for value in part.inputs[:, 0]]


def label_counts(part: Examples, num_classes: int) -> NDArray[np.int64]:
    return np.bincount(part.labels, minlength=num_classes)
