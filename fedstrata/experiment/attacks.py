"""The section `attacks` of an experiment file: devices and LPSs that attack on purpose, to see what a run withstands.

Which devices attack depends only on the experiment, so every process knows it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedstrata.experiment.quantities import DeviceList
from fedstrata.experiment.sections import Settings

ATTACKS_ADDRESS = 0x61747461636B  # "attack": an address that only draws of attacks use
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Label = Annotated[int, Field(ge=0)]


class AttackSettings(Settings):
    """Hold the name of an attack, the attacking devices or LPSs, and the global rounds of the attack. Each attack
    declares its options in a subclass of this class.
    """

    name: str
    """Name of a built-in attack, or own code as `module:Class`."""
    devices: DeviceList | None = None
    """Indexes of the devices that attack, such as `[2, "5-7"]`."""
    share: Share | None = None
    """Share of all devices, drawn by the seed, in place of `devices`; two attacks with the same share have the same
    devices.
    """
    placed: Literal["spread", "together"] = "spread"
    """Places of a share's devices: `spread` evenly over the LPSs of `topology`, or `together` at as few LPSs as
    possible.
    """
    lps: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    """Numbers of the LPSs that attack the GPS, in place of devices."""
    from_global_round: int = Field(default=1, ge=1)
    """First global round of the attack, counted from 1."""
    until_global_round: int | None = Field(default=None, ge=1)
    """Last global round of the attack; without this key the last round of the run."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(each is not None for each in (self.devices, self.share, self.lps)) != 1:
            raise ValueError(
                "give exactly one of devices (their indexes), share (of all devices) and lps (numbers of LPSs)"
            )
        if self.share is None and self.placed != "spread":
            raise ValueError(f"placed {self.placed} is about share, which is missing; remove placed, or give share")
        if self.lps and len({*self.lps}) < len(self.lps):
            raise ValueError(f"lps {[*self.lps]} names an LPS twice; remove it once")
        if self.until_global_round is not None and self.until_global_round < self.from_global_round:
            raise ValueError(
                f"until_global_round {self.until_global_round} is before from_global_round {self.from_global_round}; "
                "exchange them"
            )
        return self

    def indexes(self, homes: Sequence[int], seed: int) -> frozenset[int]:
        """Return the indexes of the devices that attack. `homes` has the number of each device's LPS."""
        if self.share is None:
            return frozenset(self.devices or ())
        count = round(self.share * len(homes))
        rng = np.random.default_rng([seed, ATTACKS_ADDRESS])
        order, lps_order = rng.permutation(len(homes)).tolist(), rng.permutation(max(homes) + 1).tolist()
        seen: Counter[int] = Counter()  # devices so far, by LPS
        places = []
        for index in order:
            rank, home = seen[homes[index]], lps_order[homes[index]]
            places.append(((rank, home) if self.placed == "spread" else (home, rank), index))
            seen[homes[index]] += 1
        return frozenset(index for _, index in sorted(places)[:count])

    def is_on(self, global_round: int) -> bool:
        """Return whether the attack is active in this global round. The first round has the number 0."""
        last = self.until_global_round
        return self.from_global_round <= global_round + 1 and (last is None or global_round < last)
