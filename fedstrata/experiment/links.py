"""The sections `links` and `compute` of an experiment file: encodings, and the times of transfers and of computing.

Times are whole nanoseconds, and rates whole bits per second (`fedstrata.experiment.quantities`).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import ConfigDict, Field, field_validator, model_validator

from fedstrata.experiment.presets import BOARDS, LINK_PRESETS
from fedstrata.experiment.quantities import RATE, DeviceList, Duration, Rate
from fedstrata.experiment.rates import Trace
from fedstrata.experiment.sections import Encoding, Settings
from fedstrata.experiment.traces import TRACE_PRESETS, Generated, Traces, TraceSettings, trace_called, written

Clock = Literal["none", "real", "virtual"]
SEGMENT_BITS = 1460 * 8  # payload of TCP in a packet of 1,500 bytes
Link = Literal["device-gps", "device-lps", "lps-gps"]
LINKS: tuple[Link, ...] = get_args(Link)
WAYS = ("down", "up")


@dataclass(frozen=True, kw_only=True)
class LinkTimes:
    """Hold the times of a link as numbers, after presets have been replaced. Rates are in bits per second, where None
    means no limit. Latency and jitter are in nanoseconds.
    """

    down_rate: int | None = None
    up_rate: int | None = None
    latency: int = 0
    jitter: int = 0
    loss: float = 0.0
    down_trace: Trace | Generated | None = None
    up_trace: Trace | Generated | None = None

    def rate(self, direction: str) -> int | None:
        """Return the constant rate in a direction. It is limited to the rate that TCP reaches at the link's loss and
        latency (Mathis et al. 1997).
        """
        rate, reached = (self.down_rate if direction == "down" else self.up_rate), self._reached
        return rate if reached is None else reached if rate is None else min(rate, reached)

    def source(self, direction: str) -> int | Trace | None:
        """Return the trace in a direction. If the link has no trace, return the rate. Raises TypeError for a generated
        trace, which must first be drawn by the method `drawn`.
        """
        trace, reached = self.trace(direction), self._reached
        if isinstance(trace, Generated):
            raise TypeError("a generated trace must be drawn first, with LinkTimes.drawn")
        return self.rate(direction) if trace is None else trace if reached is None else trace.limited(reached)

    def trace(self, direction: str) -> Trace | Generated | None:
        """Return the trace in a direction. If the link has no trace, return None."""
        return self.down_trace if direction == "down" else self.up_trace

    def drawn(self, address: Sequence[int]) -> "LinkTimes":
        """Draw the link's generated traces, and return the link with the drawn traces. Their random numbers depend on
        `address` (seed, tier and child) and on the direction.
        """
        down, up = (
            trace.drawn([*address, number]) if isinstance(trace, Generated) else trace
            for number, trace in enumerate((self.down_trace, self.up_trace))
        )
        return replace(self, down_trace=down, up_trace=up)

    @property
    def _reached(self) -> int | None:
        if not self.loss:
            return None
        return max(1, int(1.22 * SEGMENT_BITS * 1e9 / (2 * self.latency * math.sqrt(self.loss))))

    def of_digest(self) -> dict[str, Any]:
        """Return, for the experiment's digest, all values of the link that affect the times of a run. Traces are
        included if the link has any.
        """
        fields = {name: value for name, value in vars(self).items() if not name.endswith("_trace")}
        return fields | {f"{way}_trace": written(trace) for way in WAYS if (trace := self.trace(way)) is not None}


class LinkTiming(Settings):
    """Hold the keys for the times of a link. A missing key takes the value of the preset. Without a preset, a missing
    key sets no limit.
    """

    preset: str | None = None
    """Name of a preset link; values in this entry replace the values of the preset."""
    down_rate: Rate | None = None
    """Rate towards the devices; if neither the file nor a preset sets a rate, it has no limit."""
    up_rate: Rate | None = None
    """Rate towards the GPS; if neither the file nor a preset sets a rate, it has no limit."""
    latency: Duration | None = None
    """Latency in one direction; if neither the file nor a preset sets a latency, transfers have none."""
    jitter: Duration | None = None
    """Largest random addition to, or subtraction from, a transfer's latency, drawn evenly; at most as large as the
    latency.
    """
    loss: float | None = Field(default=None, ge=0, lt=1)
    """Share of packets that are lost; TCP then reaches a lower rate, which depends on the latency, so a latency is
    required.
    """
    down_trace: str | None = None
    """Name of a trace that replaces `down_rate`: one of `links.traces`, or `lte-driving`, `3g-driving`,
    `evdo-driving`.
    """
    up_trace: str | None = None
    """Name of a trace that replaces `up_rate`: one of `links.traces`, or `lte-driving`, `3g-driving`."""

    @field_validator("preset")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in LINK_PRESETS:
            raise ValueError(f"no preset is called {value!r}; choose one of {', '.join(LINK_PRESETS)}")
        return value

    @model_validator(mode="after")
    def _a_rate_or_a_trace(self) -> Self:
        for way in WAYS:
            if getattr(self, f"{way}_trace") is not None and getattr(self, f"{way}_rate") is not None:
                raise ValueError(f"{way}_rate and {way}_trace exclude each other; remove one")
        return self

    @property
    def said(self) -> dict[str, Any]:
        """The keys that the experiment file sets, with their values."""
        return {name: value for name in LinkTiming.model_fields if (value := getattr(self, name)) is not None}

    def resolved(self, other: LinkTimes | None = None, traces: Traces | None = None) -> LinkTimes:
        """Return the link with the names of its preset and traces replaced by values. `traces` has the experiment's
        traces by name. Without a preset, missing keys take the values of `other`. Raises ValueError for unknown traces.
        """
        said = self.said
        said.pop("preset", None)
        for way in WAYS:
            trace = said.get(f"{way}_trace")
            if trace is not None:
                said |= {f"{way}_trace": trace_called(trace, way, traces or {}), f"{way}_rate": None}
            elif f"{way}_rate" in said:
                said[f"{way}_trace"] = None
        return replace(self.preset_times or other or LinkTimes(), **said)

    @property
    def preset_times(self) -> LinkTimes | None:
        """The values of the link's preset; None without a preset."""
        return None if self.preset is None else LinkTimes(**asdict(LINK_PRESETS[self.preset]))


def check_link(link: LinkTimes, where: str) -> None:
    """Raise ValueError for a link with contradictory values. The message begins with `where`, the name of the link."""
    if link.jitter > link.latency:
        raise ValueError(f"{where}: jitter is larger than latency, so a latency could be below 0; lower jitter")
    if link.loss and not link.latency:
        raise ValueError(f"{where}: loss has no effect on a link without latency; add latency")


class LinkSettings(LinkTiming):
    """Hold the settings of a link: the encodings of tensors, `down` for models and `up` for updates, and the times of
    transfers. Times have an effect only with `clock: virtual` or `real`.
    """

    down: Encoding = "float32"
    """Encoding of models; `int8` has a scale for each tensor."""
    up: Encoding = "float32"
    """Encoding of updates; `int8` has a scale for each tensor."""

    @field_validator("down", "up", mode="before")
    @classmethod
    def _no_rate(cls, value: Any) -> Any:
        if isinstance(value, str) and value.endswith(tuple(RATE.units)):
            raise ValueError(
                f"{value!r} is a rate, but this key takes an encoding such as float32; use up_rate, down_rate"
            )
        return value


class LinkOverride(LinkTiming):
    """Define an entry of `links.overrides`: devices, and the values of their link that differ from `device-lps`."""

    devices: DeviceList
    """Indexes of these devices, with ranges: `[3, 7, "20-39"]`; a device is in one entry at most."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.said:
            raise ValueError(
                "this entry changes nothing; add what differs for these devices: preset, up_rate, latency …"
            )
        return self


class SharedRates(Settings):
    """Define a link that all devices of an LPS share fairly, such as a radio cell or the uplink of an edge site."""

    down_rate: Rate | None = None
    """Rate towards the devices that all devices of an LPS share fairly."""
    up_rate: Rate | None = None
    """Rate towards the LPS that all devices of an LPS share fairly."""
    broadcast: bool = False
    """Whether a model crosses the link only once for all devices that receive it; a `down_rate` is required."""

    @model_validator(mode="after")
    def _rate_of_the_broadcast(self) -> Self:
        if self.broadcast and self.down_rate is None:
            raise ValueError("broadcast needs down_rate; add it")
        return self


class SharedLinks(Settings):
    """Hold the links that several devices share."""

    device_lps: SharedRates = Field(alias="device-lps")
    """Link that all devices of an LPS share, such as a cell, in addition to each device's own link."""

    model_config = ConfigDict(populate_by_name=True)


class Links(Settings):
    """Hold the settings of the two links that carry models."""

    device_lps: LinkSettings = Field(default=LinkSettings(), alias="device-lps")
    """Link between a device and its LPS."""
    lps_gps: LinkSettings = Field(default=LinkSettings(), alias="lps-gps")
    """Link between an LPS and the GPS."""
    overrides: tuple[LinkOverride, ...] = ()
    """Devices with another link than `device-lps`; an entry's missing keys take the values of its preset or, without
    one, of `device-lps`.
    """
    shared: SharedLinks | None = None
    """Links that several devices share."""
    traces: Mapping[str, TraceSettings] | None = None
    """Rates that change over time (traces), by a name that you choose."""

    model_config = ConfigDict(populate_by_name=True)

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        check_once(entry.devices for entry in self.overrides)
        for name in self.traces or {}:
            if name in TRACE_PRESETS:
                raise ValueError(f"traces.{name}: a built-in trace has this name; choose another name")
        for name, link in (("device-lps", self.common()), ("lps-gps", self.uplink())):
            check_link(link, name)
        for number, entry in enumerate(self.overrides):
            check_link(entry.resolved(self.common(), self.traces), f"overrides.{number}")
        return self

    def common(self) -> LinkTimes:
        """Return the link of all devices that `overrides` does not name."""
        return self.device_lps.resolved(traces=self.traces)

    def uplink(self) -> LinkTimes:
        """Return the times of the link between an LPS and the GPS."""
        return self.lps_gps.resolved(traces=self.traces)

    @property
    def has_trace(self) -> bool:
        """Return whether at least one link has a trace in place of a constant rate."""
        every = (self.device_lps, self.lps_gps, *self.overrides)
        return any(link.down_trace is not None or link.up_trace is not None for link in every)

    @property
    def timed_key(self) -> str | None:
        """The first key of the section that sets a time; None if no key sets one. Such keys have an effect only with
        `clock: virtual` or `real`.
        """
        for name, link in (("device-lps", self.device_lps), ("lps-gps", self.lps_gps)):
            if link.said:
                return f"links.{name}.{next(iter(link.said))}"
        return "links.overrides" if self.overrides else "links.shared" if self.shared else None

    def of_devices(self) -> dict[int, LinkTimes]:
        """Return, by device index, the links of the devices that `overrides` names."""
        common = self.common()
        return {index: entry.resolved(common, self.traces) for entry in self.overrides for index in entry.devices}

    def times(self) -> dict[str, Any]:
        """Return, for the experiment's digest, all settings of links that affect the times of a run. Presets are
        replaced by their numbers.
        """
        common = self.common()
        return {
            "device-lps": common.of_digest(),
            "lps-gps": self.uplink().of_digest(),
            "overrides": [
                [list(entry.devices), entry.resolved(common, self.traces).of_digest()] for entry in self.overrides
            ],
            "shared": self.shared.model_dump(by_alias=True) if self.shared is not None else None,
        }


class Spread(Settings):
    """Give each device a random factor for its computing time. The factor is exp of a normal random number with mean 0
    and standard deviation `lognormal`, so the median factor is 1.
    """

    lognormal: float = Field(gt=0, le=5)
    """σ of the random factor of each device; the median of the factors is 1."""


class ComputeSettings(Settings):
    """Define how long a device computes in an LPS round: examples · per_example · profile · spread + minimum +
    exponential. `examples` is the number of examples on which the device trains. `profile` is the factor of its board,
    `spread` its random factor, and `exponential` a random time.
    """

    per_example: Duration | None = None
    """Time to train on one example on the reference board; without this key only `minimum` and `exponential` take time.
    """
    profiles: Mapping[str, Annotated[float, Field(gt=0, le=1e6)]] | None = None
    """Profiles of your own: the factor by which a device is slower than the reference board, such as `{pi3: 12}`."""
    devices: Mapping[str, DeviceList] | None = None
    """Devices by profile, such as `{pi4: [0, "5-9"]}`; `i5-7400t` (factor 1), `pi5` (2.4) and `pi4` (6.3) are known."""
    spread: Spread | None = None
    """Random differences between devices of the same profile."""
    minimum: Duration | None = None
    """Time that is added to each device's computing time in each LPS round (T_min)."""
    exponential: Duration | None = None
    """Mean (1/μ) of a random time, drawn from an exponential distribution, that is added for each device and LPS round.
    """

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        check_once((self.devices or {}).values())
        known = {**BOARDS, **(self.profiles or {})}
        for name in self.devices or {}:
            if name not in known:
                raise ValueError(
                    f"devices: no profile is called {name!r}; choose one of {', '.join(known)}, or add it to profiles"
                )
        if self.per_example is None and (self.devices or self.spread):
            raise ValueError("devices and spread need per_example, which is missing; add it, such as 0.8ms")
        return self

    def profile_of_devices(self) -> dict[int, str]:
        """Return, by device index, the name of the profile (kind of board) that `devices` gives to a device."""
        return {index: name for name, indexes in (self.devices or {}).items() for index in indexes}

    def factors(self) -> dict[int, float]:
        """Return a factor for each device that `devices` names, by device index. The factor is the computing time on
        this device's kind of board, divided by the computing time on the reference board.
        """
        known = {**BOARDS, **(self.profiles or {})}
        return {index: known[name] for index, name in self.profile_of_devices().items()}


def check_once(entries: Any) -> None:
    """Raise ValueError if two entries name the same device."""
    seen: set[int] = set()
    for devices in entries:
        twice = seen.intersection(devices)
        if twice:
            raise ValueError(f"device {min(twice)} is in two entries; remove it from one")
        seen.update(devices)


def check_known(links: Links, compute: ComputeSettings | None, devices: int) -> None:
    """Raise ValueError if the sections `links` and `compute` name devices that the partition does not have."""
    check_index("links.overrides", [index for entry in links.overrides for index in entry.devices], devices)
    check_index("compute.devices", compute.profile_of_devices() if compute is not None else (), devices)


def check_index(key: str, indexes: Collection[int], devices: int) -> None:
    """Raise ValueError if `key` names a device that the partition does not have."""
    if max(indexes, default=0) >= devices:
        raise ValueError(f"{key}: there is no device {max(indexes)}; the partition has devices 0 to {devices - 1}")
