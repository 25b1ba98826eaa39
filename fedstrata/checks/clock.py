"""What a clock cannot carry, refused by name before anything starts."""

from fedstrata.clock.energy import check_energy
from fedstrata.experiment import Experiment
from fedstrata.experiment.partition import LocalPartition


def timed_key(experiment: Experiment) -> str | None:
    """The first key that says something of time, or of energy, which is worked out from it."""
    sections = ("compute", "schedule", "energy")
    return experiment.links.timed_key or next((key for key in sections if getattr(experiment, key)), None)


def check_clock(experiment: Experiment) -> None:
    """Refuse what the experiment's clock has no place for. Raises ValueError."""
    timed = timed_key(experiment)
    if timed and "clock" not in experiment.model_fields_set:
        raise ValueError(f"{timed} goes by a clock: add clock: virtual or real, or clock: none to pass over it")
    if experiment.clock == "none":
        return
    check_energy(experiment)
    if experiment.clock == "virtual":
        _check_virtual(experiment)


def _check_virtual(experiment: Experiment) -> None:
    are_real = isinstance(experiment.partition, LocalPartition)
    if are_real:
        raise ValueError("clock: virtual models the time that boards take, and those of partition.kind local are real")
    for tier in ("enrolment", "gps"):
        if getattr(experiment.deadlines, tier).deadline_s is not None:
            raise ValueError(f"clock: virtual has deadlines of LPS rounds only; leave deadlines.{tier}.deadline_s out")
