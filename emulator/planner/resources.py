"""Name what a run uses until it reaches a target: time, bytes and energy."""

from collections.abc import Mapping
from enum import StrEnum

from emulator.console.energy_text import human_joules
from emulator.console.units import human_bytes, human_seconds


class Resource(StrEnum):
    """Name a resource. The name is also the key in a search file and the column in plan.csv."""

    SECONDS = "seconds"
    DEVICE_BYTES = "device_bytes"
    LPS_GPS_BYTES = "lps_gps_bytes"
    JOULES = "joules"

    @property
    def label(self) -> str:
        """The name in tables and figures."""
        return LABELS[self]

    def said(self, amount: float) -> str:
        """Return an amount as text, with its unit."""
        if self is Resource.SECONDS:
            return human_seconds(amount)
        return human_joules(amount) if self is Resource.JOULES else human_bytes(round(amount))


LABELS = {
    Resource.SECONDS: "time",
    Resource.DEVICE_BYTES: "bytes of devices",
    Resource.LPS_GPS_BYTES: "bytes LPS–GPS",
    Resource.JOULES: "energy of devices",
}
Amounts = Mapping[Resource, float]  # of a global round, or until the target; energy only if the experiment counts it
