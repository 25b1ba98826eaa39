"""The LPS of each device, and the number of LPSs."""

from collections.abc import Sequence

from fedstrata.experiment import Experiment
from fedstrata.methods.base import Method
from fedstrata.streams.streams import are_placed_by_index


def homes_of(experiment: Experiment, method: Method, clusters: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return, for each LPS, the indexes of its devices."""
    if not are_placed_by_index(experiment, method):
        return [tuple(cluster) for cluster in clusters]
    there = sorted(index for cluster in clusters for index in cluster)
    return [
        tuple(index for index in there if home_of(experiment, index) == home) for home in range(lps_count(experiment))
    ]


def home_of(experiment: Experiment, device_index: int) -> int:
    """Return the number of a device's LPS. Use this only for runs in which the device's index decides its LPS."""
    topology = experiment.topology
    if topology is None:
        return 0
    if topology.devices is None:
        return device_index % topology.lps
    return next(number for number, devices in enumerate(topology.devices) if device_index in devices)


def lps_count(experiment: Experiment) -> int:
    """Return the number of LPSs. Use this only for runs in which the clusters do not decide the number."""
    return experiment.topology.lps if experiment.topology is not None else 1


def lps_known(experiment: Experiment, method: Method) -> int:
    """Return the number of LPSs if it is known before the GPS makes a plan. If the number depends on the plan, return
    0.
    """
    return lps_count(experiment) if are_placed_by_index(experiment, method) else method.clusters_known
