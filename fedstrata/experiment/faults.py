"""The section `faults` of an experiment file: failures that a run causes on purpose, each with its place and time.

Without deadlines, a run with faults and the same run without faults have the same result. Both always have the same run
id. Examples are in docs/how-to/cause-faults.md.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveFloat, model_validator

from fedstrata.experiment.links import Link
from fedstrata.experiment.sections import Settings
from fedstrata.process.fault_points import Point

Phase = Literal["enrolment", "relevance", "grouping", "training", "evaluation"]
PROCESS = r"^(gps|lps-\d+|[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?)$"


class Moment(Settings):
    """Define when a fault happens: when the run enters a phase, or when a global round is open.

    A kill may also happen when a process reaches a named point of its code for the `count`-th time.
    """

    phase: Phase | None = None
    """The fault happens when the run enters this phase."""
    global_round: int | None = Field(default=None, ge=1)
    """The fault happens when this global round is open, counted from 1."""
    point: Point | None = None
    """The kill happens when the process reaches this named point of its code."""
    round: int | None = Field(default=None, ge=0)
    """With `point`: the kill happens only in this round of the process's tier, counted from 0."""
    count: int = Field(default=1, ge=1)
    """With `point`: the process is killed when it reaches the point for the `count`-th time."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(given is not None for given in (self.phase, self.global_round, self.point)) != 1:
            raise ValueError("give exactly one of phase, global_round and point")
        if self.point is None and (self.round is not None or self.count != 1):
            raise ValueError("round and count need the key point; add it, or remove them")
        return self


def _no_point(moment: Moment) -> Moment:
    if moment.point is not None:
        raise ValueError("only kill can use the key point; give phase or global_round instead")
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
    """Send SIGSTOP to a process, and SIGCONT after `for_s` seconds."""

    do: Literal["pause"]
    """`pause` sends SIGSTOP to a process, and SIGCONT after `for_s` seconds."""
    process: str = Field(pattern=PROCESS)
    """Process: `gps`, `lps-0` and so on, or a device's id for the process that hosts the device."""
    for_s: PositiveFloat
    """Number of seconds for which the process is stopped."""
    at: OpenMoment
    """Moment of the fault: `phase` or `global_round`."""


class CutFault(Settings):
    """Reset the connections of a link, and refuse new connections for `for_s` seconds."""

    do: Literal["cut"]
    """`cut` resets the connections of a link, and refuses new connections for `for_s` seconds."""
    link: Link
    """Link that fails."""
    for_s: PositiveFloat
    """Number of seconds for which the link is cut."""
    at: OpenMoment
    """Moment of the fault: `phase` or `global_round`."""


Fault = Annotated[KillFault | PauseFault | CutFault, Field(discriminator="do")]
