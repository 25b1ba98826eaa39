"""Check secure aggregation and noise against the number of devices in a round, the range of a sum, and the number of a
device's examples.
"""

import math
from collections import Counter
from collections.abc import Collection

from fedstrata.clock.device_times import Homes
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.privacy import MOST_MASKED, ProfilePrivacy
from fedstrata.experiment.quantities import DURATION
from fedstrata.methods import Method
from fedstrata.methods.cohort import cohort_size
from fedstrata.methods.profiles.private_profiles import check_enough
from fedstrata.partitions import Partition
from fedstrata.privacy.updates import UpdateBudget, budget_of
from fedstrata.streams.homes import home_of, homes_of
from fedstrata.tensors.exact_sum import largest_value


def check_protection(experiment: Experiment, method: Method) -> None:
    """Check secure aggregation and noise. Raise ExperimentError if too few or too many devices take part in a round
    with masks, or if noise is too large for the sums. Also raise it if a device has too few examples for noise on
    profiles.
    """
    if experiment.secure_aggregation is not None:
        _check_not_too_few(experiment, method, experiment.secure_aggregation.min_devices)
        _check_not_too_many(experiment, method)
        _check_moves(experiment, experiment.secure_aggregation.min_devices)
    if experiment.privacy is not None and experiment.privacy.profiles is not None:
        _check_profiles(experiment, experiment.privacy.profiles)
    budget = budget_of(experiment)
    if budget is not None:
        _check_reach(experiment, budget)


def _check_not_too_few(experiment: Experiment, method: Method, min_devices: int) -> None:
    """Raise ExperimentError if it is certain that fewer than `min_devices` devices take part in some round.

    If the number of clusters is unknown before the run, this check assumes a single cluster.
    """
    there = set(range(experiment.device_count)) - set(experiment.newcomer_indexes)
    sizes, of = _round_sizes(experiment, method, there, "at most")
    asked = cohort_size(min(sizes), experiment.training.participation)
    if asked < min_devices:
        raise ExperimentError(
            f"secure_aggregation: {of} {asked} devices, fewer than min_devices, {min_devices}, and a sum of so few "
            "updates reveals too much about each; use more devices, form fewer clusters, or remove secure_aggregation"
        )


def _check_not_too_many(experiment: Experiment, method: Method) -> None:
    """Raise ExperimentError if it is certain that more devices take part in some round than masks allow.

    If the number of clusters is unknown before the run, an LPS makes this check during the run.
    """
    if not method.clusters_known:
        return
    trained = set(range(experiment.device_count))
    if (late := experiment.newcomers) is not None and late.from_global_round > experiment.training.global_rounds:
        trained -= set(experiment.newcomer_indexes)
    sizes, of = _round_sizes(experiment, method, trained, "at least")
    asked = cohort_size(max(sizes), experiment.training.participation)
    if asked > MOST_MASKED:
        raise ExperimentError(
            f"secure_aggregation: {of} {asked} devices, and masks work for at most {MOST_MASKED}; "
            f"set training.participation: {MOST_MASKED}, form more clusters, or remove secure_aggregation"
        )


def _check_moves(experiment: Experiment, min_devices: int) -> None:
    """Raise ExperimentError if the schedule moves so many devices from an LPS that fewer than `min_devices` of its
    devices take part in a round. Moves at the same time are checked together.
    """
    first = {index: home_of(experiment, index) for index in range(experiment.device_count)}
    moved = Homes(experiment)
    for at in moved.times:
        homes = {**first, **moved.at(at)}
        home, devices = min(Counter(homes.values()).items(), key=lambda item: item[1])
        if cohort_size(devices, experiment.training.participation) < min_devices:
            raise ExperimentError(
                f"secure_aggregation: after the moves at {DURATION.written(at)} lps-{home} has {devices} devices, of "
                f"which a round asks fewer than min_devices, {min_devices}; move other devices to lps-{home} at the "
                "same time, or remove the moves"
            )


def _round_sizes(experiment: Experiment, method: Method, devices: Collection[int], bound: str) -> tuple[list[int], str]:
    """Return how many devices can take part in a round of each LPS or cluster, and the beginning of an error message
    about these numbers.

    If there is one cluster, return one number per LPS: the number of its devices. If there are several clusters, their
    sizes are not known before the run, but their mean size is. So return equal sizes, except for rounding. For
    example, if ten devices form three clusters, return 3, 3 and 4.

    Whatever the real sizes are, the smallest cluster has at most 3 devices, and the largest at least 4. The message
    contains `bound`. A caller that uses the smallest number sets `bound` to "at most", and a caller that uses the
    largest sets it to "at least".
    """
    if method.clusters_known == 1:
        sizes = [len(home) for home in homes_of(experiment, method, [sorted(devices)])]
        return sizes, f"one of the {len(sizes)} LPSs asks" if len(sizes) > 1 else "a round asks"
    clusters = max(1, method.clusters_known)
    sizes = [(len(devices) + place) // clusters for place in range(clusters)]
    return sizes, f"a round of one of the {clusters} clusters asks {bound}" if clusters > 1 else f"a round asks {bound}"


def _check_reach(experiment: Experiment, budget: UpdateBudget) -> None:
    most = largest_value(experiment.device_count)
    if budget.reach > most:
        raise ExperimentError(
            f"privacy.updates: values of noised updates can reach ±{budget.reach:.3g}, and sums hold at most "
            f"±{most:g}; lower clip, or add less noise"
        )


def _check_profiles(experiment: Experiment, settings: ProfilePrivacy) -> None:
    partition = experiment.partition
    if not isinstance(partition, Partition) or partition.least_examples is None:
        return  # the sizes are not known here: each device checks its own number of examples
    least = partition.least_examples
    if partition.test_share is not None:
        least -= math.ceil(partition.test_share * least)
    check_enough(least, settings, "the partition gives a device")
