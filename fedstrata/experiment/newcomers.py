"""The section `newcomers` of an experiment file: devices that join after the other devices have been grouped.

The first plan groups all other devices, which are called founders. Then `Method.place` chooses a cluster for each
newcomer, from the answers of the founders and of the newcomer. A newcomer takes part from a fixed global round on. So
results do not depend on the time at which the newcomer's process starts.
"""

from collections.abc import Sequence
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from fedstrata.experiment.quantities import DeviceList
from fedstrata.experiment.sections import Settings

NEWCOMERS_ADDRESS = 0x6E6577  # "new": an address that only these draws use
Share = Annotated[float, Field(gt=0, lt=1)]


class NewcomerSettings(Settings):
    """Name the newcomers, or state their share, and the global round in which they begin to train."""

    share: Share | None = None
    """Share of all devices that are newcomers, drawn by the seed; each group of the partition keeps at least one
    founder.
    """
    devices: DeviceList | None = None
    """Indexes of the newcomers, such as `[2, "5-7"]`, in place of a share."""
    from_global_round: int = Field(ge=2)
    """First global round in which newcomers train, counted from 1; with one more than `global_rounds`, they only use
    the final models.
    """

    def indexes(self, groups: Sequence[str], seed: int) -> frozenset[int]:
        """Return the indexes of the newcomers. `groups` has the true group of each device, in index order."""
        if self.devices is not None:
            return frozenset(self.devices)
        return drawn(groups, round((self.share or 0.0) * len(groups)), seed)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.share is None) == (self.devices is None):
            raise ValueError("give exactly one of share (of all devices) and devices (their indexes)")
        return self


def drawn(groups: Sequence[str], count: int, seed: int) -> frozenset[int]:
    """Draw `count` newcomers, and return their indexes. At least one device of each group is not a newcomer, so fewer
    than `count` devices may be drawn. `groups` has the group of each device, in index order.
    """
    order = np.random.default_rng([seed, NEWCOMERS_ADDRESS]).permutation(len(groups)).tolist()
    left = {group: groups.count(group) for group in groups}
    found: set[int] = set()
    for index in order:
        if len(found) < count and left[groups[index]] > 1:
            left[groups[index]] -= 1
            found.add(index)
    return frozenset(found)
