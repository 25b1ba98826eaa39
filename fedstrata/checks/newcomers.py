"""Newcomers whom nobody can place, or that leave too few founders, refused by name before anything starts."""

from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.newcomers import NewcomerSettings
from fedstrata.methods import Method
from fedstrata.streams.homes import homes_of
from fedstrata.streams.streams import are_placed_by_index, asks_in_training


def check_newcomers(experiment: Experiment, method: Method) -> None:
    """Refuse newcomers whom nobody can place, or that leave too few founders. Raises ExperimentError."""
    settings = experiment.newcomers
    if settings is None:
        return
    why = _why_not_these(experiment, settings) or _why_not_here(experiment, method)
    if why is not None:
        raise ExperimentError(f"newcomers: {why}")


def _why_not_these(experiment: Experiment, settings: NewcomerSettings) -> str | None:
    count, rounds = experiment.device_count, experiment.training.global_rounds
    if settings.devices is not None and max(settings.devices) >= count:
        return f"there is no device {max(settings.devices)}; the partition has 0 to {count - 1}"
    if settings.from_global_round > rounds + 1:
        return (
            f"from_global_round is {settings.from_global_round}, and training.global_rounds {rounds}; say at most "
            f"{rounds + 1}, for devices that only use the models"
        )
    if settings.share is not None and not experiment.newcomer_indexes:
        return (
            f"a share of {settings.share:g} of {count} devices, one of each group left out, is nobody; raise it, or "
            "name devices"
        )
    return None


def _why_not_here(experiment: Experiment, method: Method) -> str | None:
    if not method.places_late() or method.mixes or asks_in_training(method) is not None:
        return f"method {experiment.method.name} has nothing to place them by; choose another method"
    newcomers, clusters = experiment.newcomer_indexes, max(1, method.clusters_known)
    founders = experiment.device_count - len(newcomers)
    if founders < clusters:
        return f"{founders} founders are too few for {clusters} clusters; have fewer newcomers"
    heard = set(method.relays()) - newcomers
    if any(question.relayed for question in method.questions()) and len(heard) < clusters:
        return f"of the landmarks {len(heard)} are founders, too few for {clusters} clusters; raise method.landmarks"
    if are_placed_by_index(experiment, method):
        homes = homes_of(experiment, method, [[i for i in range(experiment.device_count) if i not in newcomers]])
        if not all(homes):
            return f"all devices of lps-{homes.index(())} are newcomers; leave it a founder"
    if experiment.clock != "none":
        return "on a clock nobody says when they come; leave clock out, or newcomers"
    return None
