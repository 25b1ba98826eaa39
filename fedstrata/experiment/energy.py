"""The section `energy` of an experiment file: the energy of radios per bit and per second, and the power of boards.

The section does not change a run. It only adds the calculated energy to the record.
"""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import model_validator

from fedstrata.experiment.links import ComputeSettings, check_index, check_once
from fedstrata.experiment.quantities import DeviceList, Quantity
from fedstrata.experiment.sections import Settings

POWER = Quantity(
    units={"uW": 1, "mW": 10**3, "W": 10**6, "kW": 10**9},
    example="7.2W",
    most=10**12,
    limits="power must be at most a megawatt, 1000kW",
)
PER_BIT = Quantity(
    units={"uJ/Mbit": 1, "mJ/Mbit": 10**3, "J/Mbit": 10**6},  # 1 uJ/Mbit is one picojoule per bit
    example="438.39mJ/Mbit",
    most=10**12,
    limits="energy per bit must be at most 1000000J/Mbit",
)
Power = Annotated[int, *POWER.form]
PerBit = Annotated[int, *PER_BIT.form]


class RadioSettings(Settings):
    """Hold the energy of a radio: `up` and `down` per bit, and `base` per second of a transfer."""

    up: PerBit
    """Energy per bit sent; 1 mJ/Mbit is the same as 1 mW per Mbit/s, the unit of papers."""
    down: PerBit
    """Energy per bit received."""
    base: Power
    """Power of the radio while a transfer lasts."""


# Power = up * rate up + down * rate down + base. The source gives mW per Mbit/s, which is the same as mJ/Mbit.
RADIO_SOURCE = "Huang et al., MobiSys 2012"
RADIOS: Mapping[str, RadioSettings] = {
    "lte": RadioSettings.model_validate({"up": "438.39mJ/Mbit", "down": "51.97mJ/Mbit", "base": "1288.04mW"}),
    "wifi": RadioSettings.model_validate({"up": "283.17mJ/Mbit", "down": "137.01mJ/Mbit", "base": "132.86mW"}),
}
# Power of a whole board while all its cores compute, by profile of the section `compute`.
WATTS_SOURCE = "Jeff Geerling's list of HPL runs"
BOARD_WATTS: Mapping[str, int] = {
    "i5-7400t": POWER.parsed("41W"),
    "pi4": POWER.parsed("7.2W"),
    "pi5": POWER.parsed("11W"),
}


class EnergyOverride(Settings):
    """Replace the radio of some devices, which `energy.radio` otherwise names. Or replace the power of these devices
    while they compute, which `energy.profiles` or `energy.compute` otherwise gives.
    """

    devices: DeviceList
    """Indexes of the devices, with ranges such as `[3, "20-39"]`; a device is in one entry at most."""
    radio: str | None = None
    """Radio of these devices: `lte`, `wifi`, or one of `energy.radios`."""
    compute: Power | None = None
    """Power of these devices while they compute."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.radio is None and self.compute is None:
            raise ValueError("this entry changes nothing; add radio or compute, or remove the entry")
        return self


class EnergySettings(Settings):
    """Hold the radios and the power from which the energy of transfers and computing is calculated."""

    radio: str | None = None
    """Radio of all devices: `lte`, `wifi`, or one of `energy.radios`. Without this key, transfers use no energy."""
    radios: Mapping[str, RadioSettings] | None = None
    """Radios of your own, by name, such as `{nb: {up: 30mJ/Mbit, down: 20mJ/Mbit, base: 400mW}}`."""
    compute: Power | None = None
    """Power while computing, for devices with a profile of unknown power, or without a profile."""
    profiles: Mapping[str, Power] | None = None
    """Power while computing, by profile of the section `compute`, such as `{pi3: 4W}`; `i5-7400t`, `pi5` and `pi4` are
    known.
    """
    overrides: tuple[EnergyOverride, ...] = ()
    """Devices with their own radio or power, in place of `energy.radio` and the power of their profile."""

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        named = [self.radio, *(entry.radio for entry in self.overrides)]
        known = {**RADIOS, **(self.radios or {})}
        for name in named:
            if name is not None and name not in known:
                raise ValueError(
                    f"no radio is called {name!r}; choose one of {', '.join(known)}, or add it to energy.radios"
                )
        for name in self.radios or {}:
            if name in RADIOS:
                raise ValueError(f"radios.{name}: a built-in radio has this name; choose another name")
        check_once(entry.devices for entry in self.overrides)
        return self

    def check_known(self, compute: ComputeSettings | None, devices: int) -> None:
        """Raise ValueError if `overrides` names a device that the partition does not have, or if a device has computing
        time but no known power.
        """
        check_index("energy.overrides", [index for entry in self.overrides for index in entry.devices], devices)
        profiles = compute.profile_of_devices() if compute is not None else {}
        for index in range(devices) if compute is not None else ():
            if self.watts_of(index, profiles.get(index)) is None:
                of = f"its profile {profiles[index]!r}" if index in profiles else "the reference core"
                raise ValueError(
                    f"energy: the computing power of device {index} ({of}) is unknown; set energy.compute, "
                    "energy.profiles or an entry of energy.overrides (0W leaves computing out of the energy)"
                )

    def radio_of(self, index: int) -> RadioSettings | None:
        """Return the radio of a device. If the file names no radio for the device, return None. The device's transfers
        then use no energy.
        """
        own = next((entry.radio for entry in self.overrides if index in entry.devices and entry.radio), self.radio)
        return None if own is None else {**RADIOS, **(self.radios or {})}[own]

    def watts_of(self, index: int, profile: str | None) -> int | None:
        """Return the power, in microwatts, of a device while it computes. `profile` is the device's profile in the
        section `compute`. If the power is unknown, return None.
        """
        own = next((entry.compute for entry in self.overrides if index in entry.devices), None)
        by_profile = {**BOARD_WATTS, **(self.profiles or {})}.get(profile) if profile is not None else None
        return next((power for power in (own, by_profile, self.compute) if power is not None), None)
