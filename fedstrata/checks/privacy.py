"""What secure aggregation and noise cannot do, refused with the key that says otherwise."""

import math

from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.partition import LocalPartition
from fedstrata.experiment.privacy import PrivacySettings, ProfilePrivacy
from fedstrata.experiment.sections import MOST_MASKED
from fedstrata.methods import Method, Moment
from fedstrata.methods.profiles.private_profiles import check_enough
from fedstrata.privacy.updates import UpdateBudget, budget_of
from fedstrata.streams.cohort import cohort_size
from fedstrata.streams.streams import asks_in_training, spans_lps
from fedstrata.tensors.exact_sum import largest_value


def check_protection(experiment: Experiment, method: Method) -> None:
    """Refuse masks and noise that the rest of an experiment does not go with. Raises ExperimentError."""
    check_secure_aggregation(experiment, method)
    check_privacy(experiment, method)


def check_secure_aggregation(experiment: Experiment, method: Method) -> None:
    """Refuse secure aggregation where an LPS needs single updates, or has too few of them. Raises ExperimentError."""
    settings = experiment.secure_aggregation
    if settings is None:
        return
    if (why := _why_not(experiment, method)) is not None:
        raise ExperimentError(f"secure_aggregation: {why}")
    _check_not_too_few(experiment, method.clusters_known, settings.min_devices)
    _check_not_too_many(experiment, method.clusters_known)


def _check_not_too_few(experiment: Experiment, clusters: int, min_devices: int) -> None:
    """Refuse rounds that are certain to ask too few: the smallest of some clusters has at most their mean.

    If the method finds out how many clusters there are, at least the round of a single cluster is checked.
    """
    there = experiment.device_count - len(experiment.newcomer_indexes)
    asked = cohort_size(there // max(1, clusters), experiment.training.participation)
    if asked < min_devices:
        of = f"of {clusters} clusters one asks" if clusters > 1 else "a round asks"
        raise ExperimentError(
            f"secure_aggregation: {of} at most {asked} devices, and a sum of fewer than min_devices, {min_devices}, "
            "says too much of each; have more devices, form fewer clusters, or leave it out"
        )


def _check_not_too_many(experiment: Experiment, clusters: int) -> None:
    """Refuse rounds that are certain to ask too many: of so many clusters one has as many devices as their mean.

    Where the method finds out how many clusters there are, an LPS refuses such a round when it comes to it.
    """
    trained = experiment.device_count
    if (late := experiment.newcomers) is not None and late.from_global_round > experiment.training.global_rounds:
        trained -= len(experiment.newcomer_indexes)
    asked = cohort_size(math.ceil(trained / clusters), experiment.training.participation) if clusters else 0
    if asked > MOST_MASKED:
        of = "a round asks" if clusters == 1 else f"of {clusters} clusters one asks at least"
        raise ExperimentError(
            f"secure_aggregation: {of} {asked} devices, and masks are for at most {MOST_MASKED}; "
            f"say training.participation: {MOST_MASKED}, form more clusters, or leave it out"
        )


def _why_not(experiment: Experiment, method: Method) -> str | None:
    name = experiment.method.name
    if method.mixes:
        return f"method {name} gives each device weights that its LPS applies to single updates; choose another method"
    if asks_in_training(method) is Moment.TRAINED:
        return f"method {name} has devices answer about their updates, which tells what masks hide; take another method"
    if spans_lps(experiment, method):
        key = "topology" if experiment.topology is not None else f"method {name}"
        return f"with {key} clusters span LPSs, and sums of single clusters at one LPS are of few devices; leave it out"
    if experiment.limits.max_update_norm is not None:
        return "nobody can check bounds.max_update_norm of an update that is masked; leave one of them out"
    return None


def check_privacy(experiment: Experiment, method: Method) -> None:
    """Refuse noise where it would not cover what it is said to. Raises ExperimentError."""
    privacy = experiment.privacy
    if privacy is None:
        return
    if privacy.profiles is not None:
        _check_profiles(experiment, method, privacy.profiles)
    budget = budget_of(experiment)
    if budget is not None:
        why = _why_not_by_method(experiment.method.name, method, privacy) or _why_not_noised(experiment, budget)
        if why is not None:
            raise ExperimentError(f"privacy.updates: {why}")


def _why_not_by_method(name: str, method: Method, privacy: PrivacySettings) -> str | None:
    """Why noise on a method's updates would not cover what its devices tell of what they have trained."""
    if not method.bears_noise:
        return f"method {name} sends nothing that may be shortened and noised; take another method"
    if method.mixes:
        return f"method {name} weighs single updates, and private ones all count as one; take another method"
    if asks_in_training(method) is not None:
        return f"method {name} has devices answer in each global round, which no noise covers; take another method"
    if method.questions() and privacy.profiles is None:
        asked = ", ".join(question.name for question in method.questions())
        return (
            f"method {name} has devices answer before training ({asked}), which nothing covers; "
            "say privacy.profiles, too, or take a method that asks nothing"
        )
    return None


def _why_not_noised(experiment: Experiment, budget: UpdateBudget) -> str | None:
    up, most = experiment.links.device_lps.up, largest_value(experiment.device_count)
    covers_sum = budget.settings.covers == "sum"
    if covers_sum and experiment.secure_aggregation is None:
        return "covers: sum needs secure_aggregation, without which an LPS sees single updates; or say covers: update"
    if covers_sum and up != "float32":
        return f"links.device-lps.up is {up}, which rounds each update by itself; with covers: sum say float32"
    if budget.reach > most:
        return (
            f"noised updates reach to ±{budget.reach:.3g}, and sums hold ±{most:g}; have a smaller clip or less noise"
        )
    return None


def _check_profiles(experiment: Experiment, method: Method, settings: ProfilePrivacy) -> None:
    if not method.noises_profiles:
        raise ExperimentError(
            f"privacy.profiles: method {experiment.method.name} shares no profile that noise is defined for; "
            "choose one_shot, or leave it out"
        )
    partition = experiment.partition
    if isinstance(partition, LocalPartition):
        return  # each board counts its own
    least = partition.least_examples
    if partition.test_share is not None:
        least -= math.ceil(partition.test_share * least)
    check_enough(least, settings, "the partition gives one")
