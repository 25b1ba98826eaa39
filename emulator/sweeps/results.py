"""Compute the results of a sweep: mean and spread over seeds for each cell and setting, and differences from the
baseline.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from emulator.results.measures import COSTS, DEVICES, Measures
from emulator.results.over_seeds import MEAN, Spread, headlines_of
from emulator.results.read_record import RunRecord
from emulator.sweeps.file import MEASURED, TEST_SET, Place, Sweep
from fedstrata.experiment.partition import TestSetName
from fedstrata.record.summary import TEST_SETS


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Hold the differences between a cell and the baseline. For each seed with both values, the baseline's value is
    subtracted from the cell's value. `spread` is over these differences. `better` is the number of seeds for which the
    cell is better.
    """

    spread: Spread
    better: int  # the number of pairs in which the cell's value is better


@dataclass(frozen=True, kw_only=True)
class SweepResults:
    """Hold the records of a sweep's completed runs, and compute its tables from them. The key of a record is the place
    (cell and setting) and the seed of the run.
    """

    sweep: Sweep
    records: Mapping[tuple[Place, int], RunRecord]

    @cached_property
    def of(self) -> Measures:
        """The measures that the tables can show. They depend on the main metric of the first record."""
        return Measures(headlines_of(self.records.values())[0])

    @cached_property
    def measures(self) -> tuple[str, ...]:
        """The names of the measures in the main table: agreement with the true tasks, the main metric, and the main
        metric on each task.
        """
        tasks = dict.fromkeys(task for run in self.records.values() for task in run.summary.of_headline.tasks or ())
        return (*self._there(self.of.results), *tasks)

    @cached_property
    def fairness(self) -> tuple[str, ...]:
        """The names of the measures of fairness (over devices) that at least one run has."""
        return self._there(self.of.fairness)

    @cached_property
    def rounds(self) -> tuple[str, ...]:
        """The names of the measures of best rounds. Empty if no run has such measures."""
        return self._there(self.of.rounds)

    @cached_property
    def test_sets(self) -> dict[Place, TestSetName]:
        """The name of the test set of each cell and setting that has a run."""
        return {place: run.summary.test_set_name for (place, _), run in self.records.items()}

    @property
    def measured_on(self) -> str:
        """The test set on which the table's numbers were measured, in words. If cells have different test sets, the
        words name the cells of each test set.
        """
        found: dict[TestSetName, list[str]] = {}
        for place, name in self.test_sets.items():
            found.setdefault(name, []).append(" ".join(place.words))
        if len(found) == 1:
            return TEST_SETS[next(iter(found))]
        return "; ".join(f"{TEST_SETS[name]} ({', '.join(places)})" for name, places in found.items())

    @cached_property
    def costs(self) -> tuple[str, ...]:
        """The names of the measures in bytes that at least one run has."""
        return self._there(COSTS)

    @property
    def main(self) -> str:
        """The name of the main measure: the mean over devices, or over clusters if no device has a value."""
        return DEVICES if DEVICES in self.measures else MEAN

    @property
    def settings(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """All settings, each once: a choice for each axis."""
        return tuple(dict.fromkeys(place.setting for place in self.sweep.places))

    def values(self, place: Place, name: str) -> dict[int, float]:
        """Return the values of a measure for a cell and setting, by seed. Runs without the measure are left out.
        Percentages are given as ratios.
        """
        runs = ((seed, self.records.get((place, seed))) for seed in self.sweep.seeds)
        found = {seed: self.of.named(name).of(run) for seed, run in runs if run is not None}
        return {seed: value for seed, value in found.items() if value is not None}

    def spread(self, place: Place, name: str) -> Spread:
        return Spread.over(list(self.values(place, name).values()))

    def difference(self, place: Place, name: str) -> Difference | None:
        """Return how a measure of a cell differs from the baseline in the same setting. If the sweep has no baseline,
        or if the cell is the baseline, return None.
        """
        if self.sweep.baseline is None or place.cell == self.sweep.baseline:
            return None
        own = self.values(place, name)
        other = self.values(Place(cell=self.sweep.baseline, setting=place.setting), name)
        pairs = [own[seed] - other[seed] for seed in own if seed in other]
        sign = 1 if self.of.named(name).higher_is_better else -1
        return Difference(spread=Spread.over(pairs), better=sum(sign * pair > 0 for pair in pairs))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each cell, setting and measure. Its keys are the names in `columns`. Missing numbers are
        None.
        """
        return [self._row(place, name) for place in self.sweep.places for name in self._measured]

    @property
    def head(self) -> list[str]:
        """The names of the columns that identify a cell and a setting."""
        return ["cell", *self.sweep.axes]

    @property
    def columns(self) -> dict[str, type]:
        """The names of the columns of `rows`, with the type of each column."""
        chosen = {TEST_SET: str} if set(self.test_sets.values()) - {"own"} else {}
        return {**dict.fromkeys(self.head, str), **MEASURED, **chosen}

    def csv_text(self) -> str:
        """Return the rows as CSV with all digits. The text does not depend on when or where the runs were done."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(self.columns))
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    @property
    def _measured(self) -> tuple[str, ...]:
        return (*self.measures, *self.fairness, *self.rounds, *self.costs)

    def _there(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the given measures, without measures that no run has."""
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
        said = (self.test_sets.get(place),) if TEST_SET in self.columns else ()
        return dict(zip(self.columns, (*place.words, *values, *said), strict=True))
