"""The LPS of each device, the number of LPSs, and whether clusters span LPSs."""

from collections.abc import Sequence

from fedstrata.experiment import Experiment
from fedstrata.methods.base import Method, Moment


def spans_lps(experiment: Experiment, method: Method) -> bool:
    """Return whether clusters span LPSs. They do if the experiment has a section `topology`, or if the method requires
    it.

    A method requires it if clusters change, if plans set weights of devices, if devices receive models of other
    clusters, or if devices no longer send some tensors after a round. The GPS decides all this, so it must keep the
    streams.
    """
    return method.mixes or method.fetches_all or method.withdraws or are_placed_by_index(experiment, method)


def are_placed_by_index(experiment: Experiment, method: Method) -> bool:
    """Return whether a device's index decides its LPS. It does if the experiment has a section `topology`, or if
    the method asks questions during training. In both cases clusters span LPSs.
    """
    return experiment.topology is not None or asks_in_training(method) is not None


def asks_in_training(method: Method) -> Moment | None:
    """Return the moment of a global round at which devices answer a question. Return None if the method asks no
    question in training.
    """
    return next((question.moment for question in method.questions() if question.moment is not Moment.BEFORE), None)


def homes_of(experiment: Experiment, method: Method, clusters: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return, for each LPS, the indexes of its devices."""
    if not are_placed_by_index(experiment, method):
        return [tuple(cluster) for cluster in clusters]
    there = sorted(index for cluster in clusters for index in cluster)
    return [
        tuple(index for index in there if home_of(experiment, index) == home) for home in range(lps_count(experiment))
    ]


def home_of(experiment: Experiment, device_index: int) -> int:
    """Return the number of the LPS that serves a device, such as 2 for `lps-2`. Use this only for runs in which the
    device's index decides its LPS.
    """
    return 0 if experiment.topology is None else experiment.topology.home_of(device_index)


def lps_count(experiment: Experiment) -> int:
    """Return how many LPSs the run has. Use this only for runs in which the clusters do not decide this."""
    return experiment.topology.lps if experiment.topology is not None else 1


def lps_known(experiment: Experiment, method: Method) -> int:
    """Return the number of LPSs if it is known before the GPS makes a plan. If the number depends on the plan, return
    0.
    """
    return lps_count(experiment) if are_placed_by_index(experiment, method) else method.clusters_known
