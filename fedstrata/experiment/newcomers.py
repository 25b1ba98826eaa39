"""Newcomers: devices that join a cluster after the other devices have formed the clusters.

The first plan is made from the other devices, the founders. The method chooses a newcomer's cluster as for a late
device (`Method.place`), by the founders' answers and its own. A newcomer takes part from a fixed global round on, so
results do not depend on when its process starts.
"""

from collections.abc import Sequence
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from fedstrata.experiment.quantities import DeviceList
from fedstrata.experiment.sections import Settings

NEWCOMERS_ADDRESS = 0x6E6577  # "new": keeps these draws apart from every other use of the seed
Share = Annotated[float, Field(gt=0, lt=1)]


class NewcomerSettings(Settings):
    """Hold the number of newcomers, and the global round in which they begin to train."""

    share: Share | None = None
    """Share of all devices, drawn by the seed; each group of the partition keeps a device that is there from the
    start.
    """
    devices: DeviceList | None = None
    """Indexes of the newcomers, such as `[2, "5-7"]`, in place of a share."""
    from_global_round: int = Field(ge=2)
    """First global round in which newcomers train, counted from 1; if it is the one after the last, they only use the
    final models.
    """

    def indexes(self, groups: Sequence[str], seed: int) -> frozenset[int]:
        """Return the newcomers' indexes. `groups` has the true group of each device by index."""
        if self.devices is not None:
            return frozenset(self.devices)
        return drawn(groups, round((self.share or 0.0) * len(groups)), seed)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.share is None) == (self.devices is None):
            raise ValueError("give either share, of all devices, or devices, by index")
        return self


def drawn(groups: Sequence[str], count: int, seed: int) -> frozenset[int]:
    """Return `count` devices, or fewer if otherwise a group would have no founder. `groups` has the group of each
    device.
    """
    order = np.random.default_rng([seed, NEWCOMERS_ADDRESS]).permutation(len(groups)).tolist()
    left = {group: groups.count(group) for group in groups}
    found: set[int] = set()
    for index in order:
        if len(found) < count and left[groups[index]] > 1:
            left[groups[index]] -= 1
            found.add(index)
    return frozenset(found)
