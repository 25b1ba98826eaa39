"""A finished run's energy, `energy` of summary.json, and how it is said."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat
from pydantic.dataclasses import dataclass as checked_dataclass

from emulator.report.units import human_joules
from fedstrata.energy import PARTS

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


def energy_line(energy: EnergySummary) -> str:
    """In one line: in all, by part, of a mean device and of the one that took most."""
    names = {"down": "receiving", "compute": "computing", "up": "sending"}
    said = ", ".join(f"{names[part]} {human_joules(getattr(energy, part))}" for part in PARTS)
    late = f"; {human_joules(energy.late)} of it for updates that were late" if energy.late else ""
    if not energy.by_device:
        return f"energy: {human_joules(energy.joules)} ({said}){late}"
    most = max(energy.by_device, key=lambda name: energy.by_device[name])
    mean = human_joules(energy.joules / len(energy.by_device))
    devices = f"a mean device {mean}, {most} {human_joules(energy.by_device[most])}"
    return f"energy: {human_joules(energy.joules)} ({said}){late}; {devices}"
