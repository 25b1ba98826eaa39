"""A finished run's energy: `energy` of summary.json."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat
from pydantic.dataclasses import dataclass as checked_dataclass

Joules = Annotated[NonNegativeFloat, Field(allow_inf_nan=False)]


@checked_dataclass(frozen=True, kw_only=True)
class EnergySummary:
    """Joules of all devices: in all, by part, for updates that missed their round, and by device."""

    joules: Joules
    down: Joules
    compute: Joules
    up: Joules
    late: Joules = 0.0
    by_device: dict[str, Joules] = Field(default_factory=dict)
