"""Random clusters: a baseline that ignores the data (Ali & Arafa, section III)."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from fedstrata.errors import ExperimentError
from fedstrata.methods.base import Answers, Candidate, Method, Moment, Plan
from fedstrata.methods.clustering import ClusterOptions, check_clusters
from fedstrata.methods.oracle import devices_by_task

RANDOM_CLUSTERS_ADDRESS = 0x5EED_C1  # an address that only these draws use


class RandomClusters(Method):
    """Divide devices into random clusters. If there are as many clusters as true tasks, the clusters have the sizes of
    the tasks. Otherwise the clusters have nearly equal sizes.
    """

    Options = ClusterOptions

    def check(self) -> None:
        """Raise ExperimentError unless the options give a number of clusters, or the partition has groups."""
        check_clusters(self.options.clusters, self.facts)
        if self.options.clusters == "auto" and not self.facts.true_groups:
            raise ExperimentError(
                "method random needs a number in method.clusters, because the partition has no true clusters; set it"
            )

    @property
    def clusters_known(self) -> int:
        """The number of clusters in the options. If the options give no number, it is the number of true groups in the
        partition, or 0 without true groups.
        """
        return self.options.given or self.facts.true_groups or 0

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Shuffle the devices, and divide the shuffled list into clusters."""
        devices = [device.device_index for device in answers.devices]
        sizes, rule = self._sizes(answers.devices)
        rng = np.random.default_rng([self.facts.seed, RANDOM_CLUSTERS_ADDRESS])
        shuffled = rng.permutation(devices).tolist()
        bounds = pairwise(accumulate(sizes, initial=0))
        return Plan.ordered([shuffled[start:stop] for start, stop in bounds], rule)

    def place(self, late: Candidate, answers: Answers, plan: Plan) -> int:
        """Return the number of a random cluster. The probability of a cluster is proportional to its number of
        devices.
        """
        rng = np.random.default_rng([self.facts.seed, RANDOM_CLUSTERS_ADDRESS, late.device_index])
        return plan.cluster_of(int(rng.choice([device.device_index for device in answers.devices])))

    def _sizes(self, devices: Sequence[Candidate]) -> tuple[list[int], str]:
        wanted = self.options.given
        if all(device.true_task is not None for device in devices):
            sizes = [len(members) for members in devices_by_task(devices).values()]
            if wanted in {None, len(sizes)}:
                return sizes, "random, of the true tasks' sizes"
        count = min(wanted or 1, len(devices))
        base, larger = divmod(len(devices), count)
        return [base + (index < larger) for index in range(count)], f"random, {count} of near-equal size"
