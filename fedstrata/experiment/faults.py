"""The section `faults` of an experiment file: faults on purpose, with their place and time.

Faults do not change the result of a run. Without deadlines, a run with faults and a run without have the same result
and the same run id. Examples are in docs/how-to/cause-faults.md.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveFloat, model_validator

from fedstrata.experiment.links import Link
from fedstrata.experiment.sections import Settings
from fedstrata.process.fault_points import Point

Phase = Literal["enrolment", "relevance", "grouping", "training", "evaluation"]
PROCESS = r"^(gps|lps-\d+|[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?)$"


class Moment(Settings):
    """Hold the time of a fault: a phase of the run, or the opening of a global round (from 1).

    A kill may also come when a process reaches a named point of its code for the `count`-th time.
    """

    phase: Phase | None = None
    """The fault comes when the run enters this phase."""
    global_round: int | None = Field(default=None, ge=1)
    """The fault comes when this global round is open, counted from 1."""
    point: Point | None = None
    """A kill comes when the process reaches this named point of its code."""
    round: int | None = Field(default=None, ge=0)
    """With `point`: only in this round of the tier that reaches it, counted from 0."""
    count: int = Field(default=1, ge=1)
    """With `point`: the process dies when it reaches the point for the `count`-th time."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(given is not None for given in (self.phase, self.global_round, self.point)) != 1:
            raise ValueError("give one of phase, global_round or point")
        if self.point is None and (self.round is not None or self.count != 1):
            raise ValueError("round and count go with a point")
        return self


def _no_point(moment: Moment) -> Moment:
    if moment.point is not None:
        raise ValueError("only a kill can come at a point; give phase or global_round")
    return moment


OpenMoment = Annotated[Moment, AfterValidator(_no_point)]


class KillFault(Settings):
    """Send SIGKILL to a process: `gps`, `lps-0` and so on, or the process of a device. The process is then started
    again.
    """

    do: Literal["kill"]
    """`kill` sends SIGKILL to a process, which is then started again."""
    process: str = Field(pattern=PROCESS)
    """Process: `gps`, `lps-0` and so on, or a device's id for the process that hosts the device."""
    at: Moment
    """Moment of the fault: one of `phase`, `global_round` and `point`."""


class PauseFault(Settings):
    """Send SIGSTOP to a process, and SIGCONT after a time."""

    do: Literal["pause"]
    """`pause` sends SIGSTOP to a process, and SIGCONT afterwards."""
    process: str = Field(pattern=PROCESS)
    """Process: `gps`, `lps-0` and so on, or a device's id for the process that hosts the device."""
    for_s: PositiveFloat
    """Seconds for which the process is stopped."""
    at: OpenMoment
    """Moment of the fault: `phase` or `global_round`."""


class CutFault(Settings):
    """Reset the connections of a link, and refuse new ones for a time."""

    do: Literal["cut"]
    """`cut` resets the connections of a link and refuses new ones."""
    link: Link
    """Link that fails."""
    for_s: PositiveFloat
    """Seconds that the link is cut."""
    at: OpenMoment
    """Moment of the fault: `phase` or `global_round`."""


Fault = Annotated[KillFault | PauseFault | CutFault, Field(discriminator="do")]
