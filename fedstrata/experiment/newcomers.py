"""Newcomers: devices that are not waited for before training, and join a cluster that others have made.

The first plan is made of the other devices, the founders, alone. A newcomer is placed as a late device is
(`Method.place`), by founders' answers and its own, and takes part from one global round on: no result depends on when
it comes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from fedstrata.experiment.quantities import DeviceList
from fedstrata.experiment.sections import Settings

if TYPE_CHECKING:
    from fedstrata.experiment import Experiment

NEWCOMERS_ADDRESS = 0x6E6577  # "new": keeps these draws apart from every other use of the seed
Share = Annotated[float, Field(gt=0, lt=1)]


class NewcomerSettings(Settings):
    """Which devices come later, and when they begin to train."""

    share: Share | None = None  # of all devices, drawn by the seed; no group of the partition is left without founders
    devices: DeviceList | None = None  # or these
    from_global_round: int = Field(ge=2)  # counted from 1; one more than there are: they only use what others trained

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.share is None) == (self.devices is None):
            raise ValueError("say either share, of all devices, or devices, by index")
        return self


def newcomers_of(experiment: "Experiment") -> frozenset[int]:
    """The indexes of the newcomers; the same wherever it is asked."""
    settings = experiment.newcomers
    if settings is None:
        return frozenset()
    if settings.devices is not None:
        return frozenset(settings.devices)
    count = experiment.device_count
    groups = experiment.task_of_devices() or ["all"] * count
    return drawn(groups, round((settings.share or 0.0) * count), experiment.seed)


def drawn(groups: Sequence[str], count: int, seed: int) -> frozenset[int]:
    """So many devices, or as many as leave each group a founder; `groups` has the group of each device by index."""
    order = np.random.default_rng([seed, NEWCOMERS_ADDRESS]).permutation(len(groups)).tolist()
    left = {group: groups.count(group) for group in groups}
    found: set[int] = set()
    for index in order:
        if len(found) < count and left[groups[index]] > 1:
            left[groups[index]] -= 1
            found.add(index)
    return frozenset(found)
