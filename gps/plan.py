"""The plan: which devices form which cluster, which LPS serves it, and who represents it to late devices."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from fedstrata.errors import UnknownChildError, WrongRunError
from fedstrata.experiment import Experiment, TaskPartition
from fedstrata.methods import Grouping
from fedstrata.relevance import Matrix
from fedstrata.rpc.address import split_address
from fedstrata.v1 import gps_service_pb2 as pb
from gps.journal import Journal
from gps.roster import Device, Roster


def cluster_name(number: int) -> str:
    """A cluster is called after the LPS that serves it."""
    return f"lps-{number}"


class Plan:
    """Clusters, written through to the journal."""

    def __init__(self, experiment: Experiment, roster: Roster, journal: Journal) -> None:
        self._experiment = experiment
        self._roster = roster
        self._journal = journal
        self._rule = journal.grouping_rule()
        self._addresses = journal.lps_addresses()
        self._representatives: dict[str, list[int]] = {}

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

    def pods(self) -> dict[str, str]:
        """By pod name the LPSs of the devices in it, joined by dots: a label's value."""
        lps_ids: dict[str, set[int]] = defaultdict(set)
        for device in self._roster.devices.values():
            if device.pod_name and device.cluster is not None:
                lps_ids[device.pod_name].add(device.cluster)
        return {pod: ".".join(cluster_name(number) for number in sorted(ids)) for pod, ids in lps_ids.items()}

    # --- LPSs -----------------------------------------------------------------------------------

    def register_lps(self, request: pb.RegisterLpsRequest) -> None:
        """Keep an LPS's address. Raises WrongRunError for another experiment, AddressError for no address."""
        if request.experiment_sha256 != self._experiment.digest:
            raise WrongRunError(f"{request.lps_id[:80]!r} was started with another experiment than the GPS")
        number = request.lps_id.removeprefix("lps-")
        if not number.isdecimal() or cluster_name(int(number)) != request.lps_id:
            raise UnknownChildError(f"{request.lps_id[:80]!r} is no LPS's id; they are lps-0, lps-1, …")
        split_address(request.address)
        self._addresses[request.lps_id] = request.address
        self._journal.register_lps(request.lps_id, request.address)

    def served_by(self, lps_id: str) -> list[str]:
        """The clusters that an LPS serves."""
        return [name for name in self.clusters if name == lps_id]

    def assignment(self, device: Device) -> pb.FetchAssignmentResponse:
        """Where a device trains, if that is known and there by now."""
        reply = pb.FetchAssignmentResponse(run_id=self._experiment.run_id)
        if device.cluster is not None and cluster_name(device.cluster) in self._addresses:
            reply.is_assigned = True
            reply.cluster_id = reply.lps_id = cluster_name(device.cluster)
            reply.lps_address = self._addresses[reply.lps_id]
        return reply

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

    def place(self, device: Device, cluster_id: str) -> None:
        """Add a late device to a cluster."""
        device.cluster = int(cluster_id.removeprefix("lps-"))
        self._journal.place(device.device_index, device.cluster)
