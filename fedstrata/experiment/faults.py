"""The `faults:` section of an experiment file: what goes wrong on purpose, where and when.

Faults are no part of what a run is a function of: without deadlines a disturbed run gives the same result as an
undisturbed one, under the same run id. Field by field in docs/recovery.md.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveFloat, model_validator

from fedstrata.experiment.links import Link
from fedstrata.experiment.sections import Settings
from fedstrata.process.fault_points import Point

Phase = Literal["enrolment", "relevance", "grouping", "training", "evaluation"]
PROCESS = r"^(gps|lps-\d+|[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?)$"


class Moment(Settings):
    """When a fault comes: in a phase of the run, once a global round (from 1) is open, or, for a kill alone, at the
    exact instruction where a process reaches a named point of its code for the `count`-th time."""

    phase: Phase | None = None
    global_round: int | None = Field(default=None, ge=1)
    point: Point | None = None
    round: int | None = Field(default=None, ge=0)  # with point: counted from 0, of the tier that reaches it
    count: int = Field(default=1, ge=1)  # with point

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(given is not None for given in (self.phase, self.global_round, self.point)) != 1:
            raise ValueError("say phase, global_round or point, one of them")
        if self.point is None and (self.round is not None or self.count != 1):
            raise ValueError("round and count go with a point")
        return self


def _no_point(moment: Moment) -> Moment:
    if moment.point is not None:
        raise ValueError("only a kill comes at a point; say phase or global_round")
    return moment


OpenMoment = Annotated[Moment, AfterValidator(_no_point)]


class KillFault(Settings):
    """SIGKILL to a process, which is started again: `gps`, `lps-0` …, or the one that hosts a device."""

    do: Literal["kill"]
    process: str = Field(pattern=PROCESS)
    at: Moment


class PauseFault(Settings):
    """SIGSTOP to a process, and SIGCONT after a time."""

    do: Literal["pause"]
    process: str = Field(pattern=PROCESS)
    for_s: PositiveFloat
    at: OpenMoment


class CutFault(Settings):
    """A link whose connections are reset and which takes no new ones for a time."""

    do: Literal["cut"]
    link: Link
    for_s: PositiveFloat
    at: OpenMoment


class SlowFault(Settings):
    """A link that carries so many bytes a second, in each direction of each connection, for a time."""

    do: Literal["slow"]
    link: Link
    bytes_per_s: PositiveFloat
    for_s: PositiveFloat
    at: OpenMoment


Fault = Annotated[KillFault | PauseFault | CutFault | SlowFault, Field(discriminator="do")]
