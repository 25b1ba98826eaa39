"""What a clock cannot carry, refused by name before anything starts."""

from typing import TYPE_CHECKING

from fedstrata.clock.energy import check_energy
from fedstrata.clock.presence import Homes
from fedstrata.experiment.partition import LocalPartition

if TYPE_CHECKING:
    from fedstrata.experiment import Experiment


def timed_key(experiment: "Experiment") -> str | None:
    """The first key that says something of time, or of energy, which is worked out from it."""
    sections = ("compute", "schedule", "energy")
    return experiment.links.timed_key or next((key for key in sections if getattr(experiment, key)), None)


def check_clock(experiment: "Experiment") -> None:
    """Refuse what the experiment's clock has no place for. Raises ValueError."""
    timed = timed_key(experiment)
    if timed and "clock" not in experiment.model_fields_set:
        raise ValueError(f"{timed} goes by a clock: add clock: virtual or real, or clock: none to pass over it")
    if experiment.clock == "none":
        return
    check_energy(experiment)
    if experiment.clock == "virtual":
        _check_virtual(experiment)


def devices_come_to_others(experiment: "Experiment") -> bool:
    """Whether an LPS gets devices in training that it had not before: moved by the clock, or new ones."""
    is_moving = experiment.clock != "none" and any(entry.move for entry in experiment.schedule)
    return is_moving or experiment.newcomers is not None


def busy_as_they_move(experiment: "Experiment") -> frozenset[int]:
    """The devices of which an LPS tells until when they are busy, since another may have them then."""
    is_deciding = experiment.is_timed and experiment.deadlines.lps.deadline_s is not None
    return Homes(experiment.schedule).moving if is_deciding else frozenset()


def announces_updates(experiment: "Experiment") -> bool:
    """Whether devices say what their updates are before they send them: who misses a deadline hangs on all of them."""
    shared = experiment.links.shared
    is_shared = shared is not None and shared.device_lps.up_rate is not None
    return experiment.is_timed and experiment.deadlines.lps.deadline_s is not None and is_shared


def counts_real_time(experiment: "Experiment") -> bool:
    """Whether something happens by the real time since training began."""
    return experiment.clock == "real" and bool(experiment.schedule or experiment.links.has_trace)


def _check_virtual(experiment: "Experiment") -> None:
    are_real = isinstance(experiment.partition, LocalPartition)
    if are_real:
        raise ValueError("clock: virtual models the time that boards take, and those of partition.kind local are real")
    for tier in ("enrolment", "gps"):
        if getattr(experiment.deadlines, tier).deadline_s is not None:
            raise ValueError(
                f"clock: virtual has deadlines of LPS rounds only; leave deadlines.{tier}.deadline_s out, or say none"
            )
