"""The section `schedule` of an experiment file: changes during training, each with its time.

Times are relative to the beginning of training. docs/links.md explains each entry.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from fedstrata.experiment.links import WAYS, LinkTiming
from fedstrata.experiment.quantities import DeviceList, Duration
from fedstrata.experiment.sections import Settings
from fedstrata.experiment.traces import Traces, trace_called, written

ScheduledLink = Literal["device-lps", "lps-gps", "shared"]
KINDS = ("set", "cut", "leave", "move")
LpsList = tuple[Annotated[int, Field(ge=0)], ...]


class _OnLink(Settings):
    """Name the links that an entry of the schedule changes. Without `devices` and `lps`, it changes all links of the
    kind that `link` names.
    """

    link: ScheduledLink = "device-lps"
    """Kind of link that changes: `device-lps`, `lps-gps`, or `shared` for `links.shared.device-lps`, which changes in
    the directions that have a rate there.
    """
    devices: DeviceList | None = None
    """With `device-lps`: indexes of the devices with a changed link; without this key all devices."""
    lps: LpsList | None = Field(default=None, min_length=1)
    """With `lps-gps`: numbers of the LPSs with a changed link, such as `[0, 2]`; without this key all LPSs."""

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.devices is not None and self.link != "device-lps":
            raise ValueError(f"the key devices is only for link: device-lps, not for {self.link}; remove it")
        if self.lps is not None and self.link != "lps-gps":
            raise ValueError(f"the key lps is only for link: lps-gps, not for {self.link}; remove it")
        return self


class SetLink(_OnLink, LinkTiming):
    """Give a link new values from the time of the entry on. Values that the entry leaves out do not change."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.said:
            raise ValueError("changes nothing; add what changes at this time: preset, up_rate, latency …")
        if self.link == "shared" and not self.said.keys() <= {"down_rate", "up_rate"}:
            raise ValueError("the shared link has only down_rate and up_rate; remove other keys")
        return self


class CutLink(_OnLink):
    """Stop all transfers on a link for the duration `for`. Transfers that have begun continue afterwards."""

    for_: Annotated[Duration, Field(gt=0)] = Field(alias="for")
    """Time for which the link carries nothing; transfers that have begun continue afterwards."""

    model_config = ConfigDict(populate_by_name=True)


class Leave(Settings):
    """Make devices leave the run. They take no part in LPS rounds that begin while they are away. Without `for` they do
    not return.
    """

    devices: DeviceList
    """Indexes of the devices that leave: they take no part in LPS rounds that begin while they are away."""
    for_: Annotated[Duration, Field(gt=0)] | None = Field(default=None, alias="for")
    """Time for which the devices are away; without this key they do not return."""

    model_config = ConfigDict(populate_by_name=True)


class Move(Settings):
    """Move devices to another LPS from the next global round on."""

    devices: DeviceList
    """Indexes of the devices that another LPS serves from the next global round on; `topology` is required."""
    to: str = Field(pattern=r"^lps-(0|[1-9]\d{0,8})$")
    """New LPS of the devices, such as `lps-1`."""

    @property
    def home(self) -> int:
        """The number of the LPS to which the devices move."""
        return int(self.to.removeprefix("lps-"))


class ScheduleEntry(Settings):
    """Define one change during training, and its time. Exactly one of the keys `set`, `cut`, `leave` and `move` is
    given.
    """

    at: Duration
    """Time of the change, since the start of training."""
    set_: SetLink | None = Field(default=None, alias="set")
    """New values of a link from this time on; values that are left out do not change."""
    cut: CutLink | None = None
    """Link that carries nothing for some time."""
    leave: Leave | None = None
    """Devices that leave the run, for some time or for good."""
    move: Move | None = None
    """Devices that another LPS serves from then on."""

    model_config = ConfigDict(populate_by_name=True)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(what is not None for what in (self.set_, self.cut, self.leave, self.move)) != 1:
            raise ValueError(f"an entry makes one change; give exactly one of {', '.join(KINDS)}")
        return self

    @property
    def devices(self) -> tuple[int, ...]:
        """The indexes of the devices that the entry names."""
        what = self.set_ or self.cut or self.leave or self.move
        return (what.devices if what is not None else None) or ()

    @property
    def lps(self) -> tuple[int, ...]:
        """The numbers of the LPSs that the entry names."""
        if self.move is not None:
            return (self.move.home,)
        what = self.set_ or self.cut
        return (what.lps if what is not None else None) or ()

    def of_digest(self, traces: Traces | None) -> dict[str, Any]:
        """Return the entry for the experiment's digest. Names of presets and traces are replaced by numbers."""
        said: dict[str, Any] = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        if self.set_ is not None and self.set_.preset_times is not None:
            said["set"]["preset"] = self.set_.preset_times.of_digest()
        for way in WAYS if self.set_ is not None else ():
            if (trace := getattr(self.set_, f"{way}_trace")) is not None:
                said["set"][f"{way}_trace"] = written(trace_called(trace, way, traces or {}))
        return said


Entries = tuple[ScheduleEntry, ...]


def changes_who_trains(entries: Sequence[ScheduleEntry]) -> bool:
    """Return whether an entry makes a device leave or move. Other entries change only times."""
    return any(entry.leave is not None or entry.move is not None for entry in entries)
