"""Write energy for the console: quantities with units, and the line about a run's energy."""

from emulator.console.units import SPACE, three_digits
from fedstrata.clock.timeline import PARTS as SPENT
from fedstrata.record.energy import EnergySummary


def human_joules(joules: float) -> str:
    """Return an energy with three digits and a unit: 12.3 mJ, 4.56 J, 7.89 kJ."""
    for size, unit in ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J")):
        if joules >= 0.9995 * size:
            return f"{three_digits(joules / size)}{SPACE}{unit}"
    return f"{three_digits(1e3 * joules)}{SPACE}mJ"


def energy_line(energy: EnergySummary) -> str:
    """Return a line about the energy: the total, its parts, the average of a device, and the energy of the device that
    used most energy.
    """
    names = {"down": "receiving", "compute": "computing", "up": "sending"}
    said = ", ".join(f"{names[part]} {human_joules(getattr(energy, part))}" for part in SPENT)
    late = f"; {human_joules(energy.late)} of it for updates that were late" if energy.late else ""
    if not energy.by_device:
        return f"energy: {human_joules(energy.joules)} ({said}){late}"
    most = max(energy.by_device, key=lambda name: energy.by_device[name])
    mean = human_joules(energy.joules / len(energy.by_device))
    devices = f"a mean device {mean}, {most} {human_joules(energy.by_device[most])}"
    return f"energy: {human_joules(energy.joules)} ({said}){late}; {devices}"
