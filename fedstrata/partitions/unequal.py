"""The common part of the partitions that divide all examples into parts of unequal sizes, by Dirichlet draws."""

from collections.abc import Callable

import numpy as np
from pydantic import Field

from fedstrata.errors import DataError
from fedstrata.experiment.sections import MAX_DEVICES
from fedstrata.partitions.base import Partition
from fedstrata.partitions.stock import Counts, Shares

MOST_DRAWS = 1000


class UnequalPartition(Partition):
    """Divide all examples among devices of unequal sizes. The division is drawn again until no device is too small."""

    devices: int = Field(ge=1, le=MAX_DEVICES)
    """Number of devices."""
    concentration: float = Field(default=0.5, gt=0)
    """Concentration of the distribution: small values give uneven shares, large values give even shares."""
    minimum: int = Field(default=10, ge=1)
    """Least number of examples of a device; shares are drawn again until each device has as many."""

    @property
    def device_count(self) -> int:
        return self.devices

    @property
    def least_examples(self) -> int:
        return self.minimum

    def shares(self, rng: np.random.Generator) -> Shares:
        """Draw the share of each device, shape (devices,)."""
        return rng.dirichlet(np.full(self.devices, self.concentration))

    def drawn(self, draw: Callable[[np.random.Generator], Counts], address: list[int], available: int) -> Counts:
        """Return the first draw in which each device has enough examples. A draw has shape (kinds, devices). Its
        generator has the seed `address`, followed by the number of the draw. Raises DataError if 1,000 draws fail.
        """
        if self.devices * self.minimum <= available:
            for number in range(MOST_DRAWS):
                counts = draw(np.random.default_rng([*address, number]))
                if counts.sum(axis=0).min() >= self.minimum:
                    return counts
        raise DataError(
            f"{available} examples were not divided among {self.devices} devices with at least {self.minimum} each in "
            f"{MOST_DRAWS} draws; lower partition.minimum or partition.devices, or raise partition.concentration"
        )


def parts(total: int, shares: Shares) -> Counts:
    """Return the sizes of the parts into which `total` examples are cut, in proportion to `shares`. Cuts are rounded
    down, and the last part gets the rest.
    """
    cuts = (np.cumsum(shares / shares.sum()) * total).astype(np.int64)[:-1]
    return np.diff(cuts, prepend=0, append=total)
