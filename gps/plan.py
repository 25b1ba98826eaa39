"""The plan: which devices form which cluster, and who represents it to late devices."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from fedstrata.experiment import Experiment, TaskPartition
from fedstrata.methods import Grouping
from fedstrata.relevance import Matrix
from gps.journal import Journal
from gps.roster import Device, Roster


def cluster_name(number: int) -> str:
    """A cluster is called after the LPS that serves it, unless another has adopted it."""
    return f"lps-{number}"


class Plan:
    """Clusters, written through to the journal."""

    def __init__(self, experiment: Experiment, roster: Roster, journal: Journal) -> None:
        self._experiment = experiment
        self._roster = roster
        self._journal = journal
        self._rule = journal.grouping_rule()
        self._representatives: dict[str, list[int]] = {}
        placed_late = sum(device.is_late and device.cluster is not None for device in roster.devices.values())
        self.version = 1 + placed_late  # grows with whatever LPSs have to hear of; the same after a restart

    @property
    def is_made(self) -> bool:
        return self._rule is not None

    @property
    def rule(self) -> str:
        """How the number of clusters was chosen."""
        return self._rule or ""

    @property
    def clusters_known(self) -> int:
        """How many LPSs the run needs as far as can be said now; 0 when grouping has to tell."""
        if self.is_made:
            return len(self.clusters)
        settings, partition = self._experiment.method, self._experiment.partition
        if settings.name == "oracle" or (settings.name == "random" and settings.clusters == "auto"):
            return len(partition.tasks) if isinstance(partition, TaskPartition) else 0
        return 0 if settings.clusters == "auto" else settings.clusters

    @property
    def clusters(self) -> dict[str, list[str]]:
        """Device ids, in index order, by cluster."""
        members: dict[int, list[str]] = defaultdict(list)
        for _, device in sorted(self._roster.devices.items()):
            if device.cluster is not None:
                members[device.cluster].append(device.device_id)
        return {cluster_name(number): members[number] for number in sorted(members)}

    def make(self, grouping: Grouping) -> None:
        """Write the clusters down."""
        self._journal.set_grouping(grouping.rule, grouping.clusters)
        for number, cluster in enumerate(grouping.clusters):
            for index in cluster:
                self._roster.devices[index].cluster = number
        self._rule = grouping.rule

    def members(self, cluster_id: str) -> list[Device]:
        """The devices of a cluster, in index order."""
        return [
            device
            for _, device in sorted(self._roster.devices.items())
            if device.cluster is not None and cluster_name(device.cluster) == cluster_id
        ]

    def examples(self) -> dict[str, int]:
        """How many examples each cluster's devices have."""
        return {name: sum(device.num_examples for device in self.members(name)) for name in self.clusters}

    def pods(self) -> dict[str, list[str]]:
        """By pod name the clusters of the devices in it."""
        numbers: dict[str, set[int]] = defaultdict(set)
        for device in self._roster.devices.values():
            if device.pod_name and device.cluster is not None:
                numbers[device.pod_name].add(device.cluster)
        return {pod: [cluster_name(number) for number in sorted(found)] for pod, found in numbers.items()}

    # --- late devices ---------------------------------------------------------------------------

    def representatives(self, candidates: Sequence[Device], relevance: Matrix | None) -> list[int]:
        """The devices that stand for the clusters: those most relevant to their cluster on average."""
        if relevance is None:
            return []
        places = {device.device_index: place for place, device in enumerate(candidates)}
        for name in self.clusters:
            indexes = [device.device_index for device in self.members(name) if device.device_index in places]
            rows = [places[index] for index in indexes]
            means = relevance[np.ix_(rows, rows)].mean(axis=1)
            best = sorted(zip(-means, indexes, strict=True))[: self._experiment.method.representatives]
            self._representatives[name] = [index for _, index in best]
        return sorted(index for indexes in self._representatives.values() for index in indexes)

    def relevance_to_clusters(self, row: Mapping[int, float]) -> dict[str, float]:
        """Mean relevance of a late device's data to each cluster's representatives."""
        return {
            name: float(np.mean([row[index] for index in indexes if index in row] or [0.0]))
            for name, indexes in self._representatives.items()
        }

    def place(self, device: Device, cluster_id: str, from_global_round: int) -> None:
        """Add a late device to a cluster."""
        device.cluster = int(cluster_id.removeprefix("lps-"))
        device.from_global_round = from_global_round
        self.version += 1
        self._journal.place(device.device_index, device.cluster)
