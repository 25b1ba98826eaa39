"""Partition `natural`: the data say which device owns which examples."""

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from fedstrata.datasets import Dataset
from fedstrata.errors import DataError
from fedstrata.experiment.sections import MAX_DEVICES
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Partition
from fedstrata.partitions.device_names import device_id, distinct_values

MOST_NAMED = 5


class NaturalPartition(Partition):
    """Give each device the examples with one value of a column, such as a user, a sensor or a file."""

    kind: Literal["natural"]
    """`natural`: each device owns the examples with its value of a column."""
    by: str = "device"
    """Column that names the owner of an example; `device` is the file's or sub-folder's name, if a `folder` has one per
    device.
    """
    devices: int | None = Field(default=None, ge=1, le=MAX_DEVICES)
    """Number of devices, equal to the column's number of different values; devices are in the order of the sorted
    values.
    """
    names: Annotated[tuple[str, ...] | None, AfterValidator(distinct_values)] = Field(default=None, min_length=1)
    """In place of `devices`: the values of the column, in index order; devices are called like them (`Hospital A`:
    `hospital-a`).
    """

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.devices is None) == (self.names is None):
            raise ValueError("natural: give exactly one of devices (their number) and names (values of the column)")
        return self

    @property
    def device_count(self) -> int:
        return self.devices or len(self.names or ())

    @property
    def device_ids(self) -> tuple[str, ...]:
        """The ids of the devices, if the experiment names them."""
        return tuple(map(device_id, self.names or ()))

    def divide(self, dataset: Dataset, seed: int) -> Assignment:
        """Return the training and test examples of each device: all examples with the device's value in the column
        `by`.
        """
        train, test = dataset.train.column(self.by), dataset.test.column(self.by)
        values = list(dataset.values(self.by))
        places = _places(self, [values[place] for place in np.union1d(train, test)])
        owners = [values.index(name) for name in places]
        split = [np.flatnonzero(train == owner) for owner in owners]
        for name, indices in zip(places, split, strict=True):
            if not len(indices):
                raise DataError(
                    f"device {name} has no training examples: column {self.by} does not contain {name}; add examples, "
                    "or remove the device"
                )
        return Assignment(train=split, test=[np.flatnonzero(test == owner) for owner in owners])


def _places(partition: NaturalPartition, found: list[str]) -> list[str]:
    """Return, for each device, the value of the column `partition.by` that marks the device's examples. `found` has the
    values that the data contain.

    Raises:
        DataError: a value of `partition.names` is not in `found`. Or no names are given, and the length of `found` is
            not `partition.devices`.
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
