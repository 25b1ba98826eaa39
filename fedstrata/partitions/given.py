"""Partition `given`: the experiment, or a file, says which device owns which examples."""

from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedstrata.datasets import Dataset
from fedstrata.errors import DataError
from fedstrata.experiment.quantities import DeviceList
from fedstrata.experiment.sections import MAX_DEVICES
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Partition
from fedstrata.partitions.stock import Indices, labels_or_one_kind, tests_like
from fedstrata.store.named_files import check_named


class GivenPartition(Partition):
    """Give each device the training examples that the experiment or a file lists."""

    kind: Literal["given"]
    """`given`: each device owns the training examples that are listed here or in a file."""
    examples: tuple[DeviceList, ...] | None = Field(default=None, min_length=1)
    """Indexes of each device's training examples, with ranges: `[[0, 1, "5-9"], [2, 3]]`."""
    file: Path | None = None
    """In place of `examples`: a text file with one line per training example, the index of its owner, or -1 for no
    owner.
    """
    file_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of the file `file`, a part of the run's id; it is computed when the experiment is read."""
    devices: int | None = Field(default=None, ge=1, le=MAX_DEVICES)
    """With `file`: the number of devices."""

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.examples is None) == (self.file is None) or (self.file is None) != (self.devices is None):
            raise ValueError("given: give either examples (a list for each device), or file and devices")
        if (self.file is None) != (not self.file_sha256):
            raise ValueError("given: file and file_sha256 need each other; give both or none")
        owned = [index for indexes in self.examples or () for index in indexes]
        if len(set(owned)) != len(owned):
            raise ValueError("the index of an example is listed twice; each example has one owner, remove one")
        return self

    @property
    def device_count(self) -> int:
        return self.devices or len(self.examples or ())

    def of_digest(self) -> dict[str, Any]:
        """Return the keys and values on which the run's id depends: the SHA-256 of the file, but not its path."""
        left_out = "file_sha256" if self.file is None else "file"
        return {key: value for key, value in super().of_digest().items() if key != left_out}

    def divide(self, dataset: Dataset, seed: int) -> Assignment:
        """Return each device's listed training examples, and test examples with the same label shares."""
        total = len(dataset.train)
        train = _listed(self, total) if self.file is None else _owned(self, self.file, total)
        return Assignment(train=train, test=tests_like(train, labels_or_one_kind(dataset), seed))


def _listed(partition: GivenPartition, total: int) -> list[Indices]:
    listed = partition.examples or ()
    highest = max(map(max, listed))
    if highest >= total:
        raise DataError(f"partition.examples names example {highest}; the training data have examples 0 to {total - 1}")
    return [np.array(indexes, np.int64) for indexes in listed]


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
