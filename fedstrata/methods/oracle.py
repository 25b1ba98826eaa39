"""Clusters from the true tasks, which only an emulated experiment knows: the upper bound of any clustering."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fedstrata.errors import ExperimentError
from fedstrata.methods.base import Candidate, FedAvg, Grouping
from fedstrata.relevance import Matrix


@dataclass(frozen=True, kw_only=True)
class Oracle(FedAvg):
    """One cluster a task."""

    def group(self, candidates: Sequence[Candidate], relevance: Matrix | None, seed: int) -> Grouping:
        """The devices of each true task."""
        return Grouping.ordered(list(devices_by_task(candidates).values()), "one cluster a task")


def devices_by_task(candidates: Sequence[Candidate]) -> dict[str, list[int]]:
    """Device indexes by true task. Raises ExperimentError where the tasks are not known."""
    tasks: dict[str, list[int]] = defaultdict(list)
    for candidate in candidates:
        if candidate.true_task is None:
            raise ExperimentError("the true tasks are known only with partition.kind tasks; choose another method")
        tasks[candidate.true_task].append(candidate.device_index)
    return dict(tasks)
