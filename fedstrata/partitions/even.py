"""The common part of the partitions in which all devices have the same number of examples."""

from pydantic import Field

from fedstrata.errors import DataError
from fedstrata.experiment.sections import MAX_DEVICES
from fedstrata.partitions.base import Partition


class EvenPartition(Partition):
    """Give every device the same number of examples, without groups of devices."""

    devices: int = Field(ge=1, le=MAX_DEVICES)
    """Number of devices."""
    examples_per_device: int = Field(ge=1)
    """Training examples of each device."""

    @property
    def device_count(self) -> int:
        return self.devices

    @property
    def most_examples(self) -> int:
        """The number of training examples of every device."""
        return self.examples_per_device

    @property
    def least_examples(self) -> int:
        """The number of examples of every device, its test examples included."""
        return self.examples_per_device

    def check_total(self, available: int) -> None:
        """Raise DataError if the devices together need more than `available` examples."""
        if self.devices * self.examples_per_device > available:
            raise DataError(
                f"the partition needs {self.devices} x {self.examples_per_device} examples, but the training data has "
                f"{available}; lower partition.devices or partition.examples_per_device"
            )
