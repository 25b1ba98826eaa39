"""What every method answers; the tiers ask these questions and know no method by name.

A method is one file: what a device says before training, how the GPS groups devices, what a local step
minimises, and which weighted sums of updates come back.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fedstrata.errors import PluginError
from fedstrata.relevance import Matrix

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]
    LocalLoss = Callable[[torch.Tensor, Tensors, Tensors], torch.Tensor]

FED_AVG_SUM = "fed_avg"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A device as the GPS sees it when it groups."""

    device_index: int
    num_examples: int
    true_task: str | None  # known where the experiment itself gave the device its data


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Which devices form which cluster: tuples of device indexes, and the rule that chose their number."""

    clusters: tuple[tuple[int, ...], ...]
    rule: str

    def check_covers(self, candidates: Sequence[Candidate]) -> None:
        """Raise PluginError unless every candidate is in one cluster, and no cluster is empty."""
        grouped = sorted(index for cluster in self.clusters for index in cluster)
        if grouped != sorted(candidate.device_index for candidate in candidates) or not all(self.clusters):
            raise PluginError(f"a method puts every device into one cluster, and this one made {list(self.clusters)}")

    @classmethod
    def ordered(cls, clusters: Sequence[Sequence[int]], rule: str) -> "Grouping":
        """Clusters in the order of their lowest device, devices in order: no result depends on label numbers."""
        ordered = sorted(tuple(sorted(cluster)) for cluster in clusters)
        return cls(clusters=tuple(ordered), rule=rule)

    def joined_by(
        self, rows: Mapping[int, Mapping[int, float]], place: Callable[[Mapping[str, float]], str]
    ) -> "Grouping":
        """These clusters and further devices, each put by `place` from its mean relevance to each cluster.

        `rows` gives, by device index, a device's relevances to devices that are in clusters already.
        """
        joined = {f"{number:06d}": list(cluster) for number, cluster in enumerate(self.clusters)}
        for index, row in rows.items():
            known = zip(joined, ([row[j] for j in cluster if j in row] for cluster in self.clusters), strict=True)
            joined[place({name: sum(values) / max(1, len(values)) for name, values in known})].append(index)
        rule = f"{self.rule}; among {sum(map(len, self.clusters))} landmarks, {len(rows)} devices placed by relevance"
        return Grouping.ordered(list(joined.values()), rule)


class Method(Protocol):
    """The questions."""

    @property
    def needs_profiles(self) -> bool:
        """Whether devices share profiles and relevance rows before they are grouped."""

    @property
    def local_loss(self) -> "LocalLoss | None":
        """What a local step minimises, from the plain loss, the weights and the received ones; None: the loss."""

    @property
    def sums(self) -> tuple[str, ...]:
        """Names of the weighted sums that an update carries."""

    def group(self, candidates: Sequence[Candidate], relevance: Matrix | None, seed: int) -> Grouping:
        """The clusters; `relevance` is R in the candidates' order where the method needs profiles."""

    def place(self, relevance: Mapping[str, float]) -> str:
        """The cluster of a late device, from its mean relevance to each cluster's representatives."""


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """FedAvg inside each cluster (McMahan et al. 2017), shared layers averaged over all: the common ground."""

    needs_profiles: bool = field(default=False, init=False)
    local_loss: "LocalLoss | None" = field(default=None, init=False)
    sums: tuple[str, ...] = field(default=(FED_AVG_SUM,), init=False)

    def place(self, relevance: Mapping[str, float]) -> str:
        """The most relevant cluster; among equals the first by name."""
        return min(relevance, key=lambda cluster_id: (-relevance[cluster_id], cluster_id))
