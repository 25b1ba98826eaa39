"""Random clusters: the baseline that ignores the data (Ali & Arafa, section III)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from fedstrata.methods.base import Candidate, FedAvg, Grouping
from fedstrata.methods.oracle import devices_by_task
from fedstrata.relevance import Matrix

RANDOM_CLUSTERS_ADDRESS = 0x5EED_C1  # keeps these draws apart from every other use of the seed


@dataclass(frozen=True, kw_only=True)
class RandomClusters(FedAvg):
    """Devices shuffled into clusters of the true tasks' sizes, or of near-equal sizes where there are no tasks."""

    clusters: int | None = None

    def group(self, candidates: Sequence[Candidate], relevance: Matrix | None, seed: int) -> Grouping:
        """A permutation of the devices, cut at the cluster sizes."""
        devices = [candidate.device_index for candidate in candidates]
        sizes, rule = self._sizes(candidates)
        shuffled = np.random.default_rng([seed, RANDOM_CLUSTERS_ADDRESS]).permutation(devices).tolist()
        bounds = pairwise(accumulate(sizes, initial=0))
        return Grouping.ordered([shuffled[start:stop] for start, stop in bounds], rule)

    def _sizes(self, candidates: Sequence[Candidate]) -> tuple[list[int], str]:
        if all(candidate.true_task is not None for candidate in candidates):
            sizes = [len(devices) for devices in devices_by_task(candidates).values()]
            if self.clusters in {None, len(sizes)}:
                return sizes, "random, of the true tasks' sizes"
        count = min(self.clusters or 1, len(candidates))
        base, larger = divmod(len(candidates), count)
        return [base + (index < larger) for index in range(count)], f"random, {count} of near-equal size"
