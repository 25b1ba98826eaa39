"""Numbers that secure aggregation and noise cannot do with: devices in a round, values of a sum, examples."""

import math

from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.partition import LocalPartition
from fedstrata.experiment.privacy import ProfilePrivacy
from fedstrata.experiment.sections import MOST_MASKED
from fedstrata.methods import Method
from fedstrata.methods.profiles.private_profiles import check_enough
from fedstrata.privacy.updates import UpdateBudget, budget_of
from fedstrata.streams.cohort import cohort_size
from fedstrata.tensors.exact_sum import largest_value


def check_protection(experiment: Experiment, method: Method) -> None:
    """Refuse masks for too few or too many devices, and noise that sums cannot hold. Raises ExperimentError."""
    if experiment.secure_aggregation is not None:
        _check_not_too_few(experiment, method.clusters_known, experiment.secure_aggregation.min_devices)
        _check_not_too_many(experiment, method.clusters_known)
    if experiment.privacy is not None and experiment.privacy.profiles is not None:
        _check_profiles(experiment, experiment.privacy.profiles)
    budget = budget_of(experiment)
    if budget is not None:
        _check_reach(experiment, budget)


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


def _check_reach(experiment: Experiment, budget: UpdateBudget) -> None:
    most = largest_value(experiment.device_count)
    if budget.reach > most:
        raise ExperimentError(
            f"privacy.updates: noised updates reach to ±{budget.reach:.3g}, and sums hold ±{most:g}; have a smaller "
            "clip or less noise"
        )


def _check_profiles(experiment: Experiment, settings: ProfilePrivacy) -> None:
    partition = experiment.partition
    if isinstance(partition, LocalPartition):
        return  # each board counts its own
    least = partition.least_examples
    if partition.test_share is not None:
        least -= math.ceil(partition.test_share * least)
    check_enough(least, settings, "the partition gives one")
