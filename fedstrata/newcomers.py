"""Newcomers: devices that are not waited for before training, and join a cluster that others have made.

The first plan is made of the other devices, the founders, alone. A newcomer is placed as a late device is
(`Method.place`), by founders' answers and its own, and takes part from one global round on: no result depends on when
it comes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from fedstrata.errors import ExperimentError
from fedstrata.quantities import DeviceList
from fedstrata.settings import Settings

if TYPE_CHECKING:
    from fedstrata.experiment import Experiment
    from fedstrata.methods import Method

NEWCOMERS_ADDRESS = 0x6E6577  # "new": keeps these draws apart from every other use of the seed
Share = Annotated[float, Field(gt=0, lt=1)]


class NewcomerSettings(Settings):
    """Which devices come later, and when they begin to train."""

    share: Share | None = None  # of all devices, drawn by the seed; no group of the partition is left without founders
    devices: DeviceList | None = None  # or these
    from_global_round: int = Field(ge=1)  # counted from 1; one more than there are: they only use what others trained

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


def check_newcomers(experiment: "Experiment", method: "Method") -> None:
    """Refuse newcomers whom nobody can place, or that leave too few founders. Raises ExperimentError."""
    settings = experiment.newcomers
    if settings is None:
        return
    why = _why_not_these(experiment, settings) or _why_not_here(experiment, method)
    if why is not None:
        raise ExperimentError(f"newcomers: {why}")


def _why_not_these(experiment: "Experiment", settings: NewcomerSettings) -> str | None:
    count, rounds = experiment.device_count, experiment.training.global_rounds
    if settings.devices is not None and max(settings.devices) >= count:
        return f"there is no device {max(settings.devices)}; the partition has 0 to {count - 1}"
    if settings.from_global_round > rounds + 1:
        return (
            f"from_global_round is {settings.from_global_round}, and training.global_rounds {rounds}; say at most "
            f"{rounds + 1}, for devices that only use the models"
        )
    if settings.share is not None and not newcomers_of(experiment):
        return (
            f"a share of {settings.share:g} of {count} devices, one of each group left out, is nobody; raise it, or "
            "name devices"
        )
    return None


def _why_not_here(experiment: "Experiment", method: "Method") -> str | None:
    founders = experiment.device_count - len(newcomers_of(experiment))
    if founders < max(1, method.clusters_known):
        return f"{founders} founders are too few for {max(1, method.clusters_known)} clusters; have fewer newcomers"
    if not method.places_late():
        return f"method {experiment.method.name} has nothing to place them by; choose another method"
    if experiment.clock != "none":
        return "on a clock nobody says when they come; leave clock out, or newcomers"
    return None
