"""The results of a sweep: mean and spread over seeds of each cell and setting, and differences to the baseline."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from emulator.results.comparison import Spread, headlines_of
from emulator.results.measures import COSTS, Measures
from emulator.results.record import RunRecord
from emulator.sweeps.file import Place, Sweep

MEASURED: Mapping[str, type] = {
    "measure": str, "seeds": int, "mean": float, "std": float, "baseline": str, "pairs": int,
    "difference_mean": float, "difference_std": float, "better": int,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Hold a cell's values minus the baseline's, pair by pair over the common seeds."""

    spread: Spread
    better: int  # in how many pairs the cell's is the better


@dataclass(frozen=True, kw_only=True)
class SweepResults:
    """Hold the records of the completed runs, each under its cell, setting and seed."""

    sweep: Sweep
    records: Mapping[tuple[Place, int], RunRecord]

    @cached_property
    def of(self) -> Measures:
        """Return the measures that the tables can show. They use the main metric of the first run."""
        return Measures(headlines_of(self.records.values())[0])

    @cached_property
    def measures(self) -> tuple[str, ...]:
        """Return the names of the measures in the main table: agreement with the true tasks, the headline metric, and
        the headline metric on each task.
        """
        tasks = dict.fromkeys(task for run in self.records.values() for task in run.summary.of_headline.tasks or ())
        return (*self._there(self.of.results), *tasks)

    @cached_property
    def fairness(self) -> tuple[str, ...]:
        """Return the names of the measures of fairness over devices, if any run has them."""
        return self._there(self.of.fairness)

    @cached_property
    def costs(self) -> tuple[str, ...]:
        """Return the names of the costs in bytes, if any run has them."""
        return self._there(COSTS)

    def values(self, place: Place, name: str) -> dict[int, float]:
        """Return a measure of a cell and setting by seed, for the runs that have it. Percents are given as ratios."""
        runs = ((seed, self.records.get((place, seed))) for seed in self.sweep.seeds)
        found = {seed: self.of.named(name).of(run) for seed, run in runs if run is not None}
        return {seed: value for seed, value in found.items() if value is not None}

    def spread(self, place: Place, name: str) -> Spread:
        return Spread.over(list(self.values(place, name).values()))

    def difference(self, place: Place, name: str) -> Difference | None:
        """Return the difference of a measure from the baseline's in the same setting. Return None if the sweep has no
        baseline, or if the cell is the baseline.
        """
        if self.sweep.baseline is None or place.cell == self.sweep.baseline:
            return None
        own = self.values(place, name)
        other = self.values(Place(cell=self.sweep.baseline, setting=place.setting), name)
        pairs = [own[seed] - other[seed] for seed in own if seed in other]
        sign = 1 if self.of.named(name).higher_is_better else -1
        return Difference(spread=Spread.over(pairs), better=sum(sign * pair > 0 for pair in pairs))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per cell, setting and measure, with the columns of `columns`. Missing numbers are None."""
        return [self._row(place, name) for place in self.sweep.places for name in self._measured]

    @property
    def head(self) -> list[str]:
        """The columns that name a cell and a setting."""
        return ["cell", *self.sweep.axes]

    @property
    def columns(self) -> dict[str, type]:
        """The columns of `rows` with their kinds."""
        return {**dict.fromkeys(self.head, str), **MEASURED}

    def csv_text(self) -> str:
        """Return the rows as CSV with full digits. The text does not depend on when or where the runs were made."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(self.columns))
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    @property
    def _measured(self) -> tuple[str, ...]:
        return (*self.measures, *self.fairness, *self.costs)

    def _there(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the measures that at least one run has."""
        return tuple(
            name for name in names if any(self.of.named(name).of(run) is not None for run in self.records.values())
        )

    def _row(self, place: Place, name: str) -> dict[str, Any]:
        own, difference = self.spread(place, name), self.difference(place, name)
        paired = difference.spread if difference else None
        values = (
            self.of.named(name).column, own.count, own.mean, own.deviation, self.sweep.baseline if difference else None,
            paired and paired.count, paired and paired.mean, paired and paired.deviation,
            difference and difference.better,
        )  # fmt: skip
        return dict(zip(self.columns, (*place.words, *values), strict=True))
