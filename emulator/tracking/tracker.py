"""Define what a tracker is: a tool that shows the curves of a run while the run is in progress."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from fedstrata.experiment.yaml_files import read_yaml
from fedstrata.record.rounds import RoundRow

COUNTED = ("seconds", "bytes_up", "bytes_down")  # columns of rounds.csv that are not measurements of models


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """Describe a run to a tracker."""

    run_id: str
    name: str  # of the experiment
    label: str  # of the run in the tool: its run id, or its place in a sweep
    folder: Path  # of the run
    settings: Mapping[str, str]  # each key of the experiment with its value
    lps_rounds_per_global_round: int

    @classmethod
    def of(cls, experiment_yaml: str, run_id: str, folder: Path) -> Self:
        """Return the description of a run. `experiment_yaml` is the run's experiment file with all its keys."""
        content = read_yaml(experiment_yaml)
        return cls(
            run_id=run_id,
            name=content["name"],
            label=run_id,
            folder=folder,
            settings=dict(flattened(content)),
            lps_rounds_per_global_round=content["training"]["lps_rounds_per_global_round"],
        )


Key = tuple[str, str, int]  # cluster, name and step of a point


@dataclass(frozen=True, kw_only=True)
class Point:
    """Hold one point of a curve."""

    cluster: str  # cluster or LPS; `run` for the result of the whole run
    name: str  # column of rounds.csv, or metric of the result
    step: int  # LPS round, counted from 1
    value: float
    time_ms: int  # milliseconds since 1970

    @property
    def key(self) -> Key:
        """Return the values that distinguish the point from all others of its run."""
        return self.cluster, self.name, self.step


class Tracker(Protocol):
    """Define what a tool must do to show a run. All calls come from one thread. If a call raises an error, it is
    repeated later, and the run goes on meanwhile.
    """

    @property
    def name(self) -> str:
        """Name of the tool, for messages and for the file of written points."""

    def begin(self, run: TrackedRun) -> None:
        """Open the tool's run. If the folder of the run has been tracked before, continue the tool's run."""

    def write(self, points: Sequence[Point]) -> None:
        """Write points. Return when the tool has them."""

    def present(self, points: Sequence[Point]) -> Set[Key]:
        """Return the keys of those `points` that the tool already has. If the tool cannot say this, return no keys.

        This method is called before points are written again, because an earlier `write` raised an error, or its
        process was killed. The tool may have received the points in spite of this.
        """

    def end(self, *, is_completed: bool) -> None:
        """Close the tool's run."""


def points_of(row: RoundRow, headline: str, lps_rounds_per_global_round: int, time_ms: int) -> Iterator[Point]:
    """Yield the points of a row of rounds.csv. Metrics and losses of models between the LPS rounds of a global round
    are left out.
    """
    found: dict[str, float | None] = {**row.metrics, f"cohort_{headline}": row.cohort, "loss": row.loss}
    found = found if row.lps_round % lps_rounds_per_global_round == 0 else {}
    for name, value in {**found, **{name: getattr(row, name) for name in COUNTED}}.items():
        if value is not None and math.isfinite(value):
            yield Point(cluster=row.lps_id, name=name, step=row.lps_round, value=float(value), time_ms=time_ms)


def flattened(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key of each value in nested mappings and lists, and the value. Keys have the form that `--set`
    takes. Values other than strings are JSON.

    >>> dict(flattened({"name": "x", "tasks": [{"labels": [0, 1]}]}))
    {'name': 'x', 'tasks.0.labels': '[0, 1]'}
    """
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from flattened(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
        for number, inner in enumerate(value):
            yield from flattened(inner, f"{key}.{number}")
    else:
        yield key, value if isinstance(value, str) else json.dumps(value)
