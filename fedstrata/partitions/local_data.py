"""Partition `local`: each device, such as a board, owns all examples in its own data folder."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from fedstrata.experiment.partition import PartitionSettings
from fedstrata.partitions.device_names import Names, distinct_names

ON_BOARDS = "partition.kind local: the data are on the boards; give an experiment with a data set"


class LocalPartition(PartitionSettings):
    """Let each device, such as a real board, own all examples in its own data folder. `names` has the ids of the
    devices, in index order.
    """

    is_local: ClassVar[bool] = True

    kind: Literal["local"]
    """`local`: each device owns all examples in its own folder; `data.name: folder` is required."""
    names: Annotated[Names, AfterValidator(distinct_names)] = Field(min_length=1)
    """Names of the devices, in index order."""
    test_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of each device's own examples on which it is tested; without this key devices use the tests in their
    folders.
    """
    test_from: Literal["random", "end"] = "random"
    """Choice of the examples of `test_share`: at `random`, or the last ones in the order of the data (`end`)."""

    @property
    def device_count(self) -> int:
        return len(self.names)

    @property
    def device_ids(self) -> tuple[str, ...]:
        """The ids of the devices."""
        return self.names
