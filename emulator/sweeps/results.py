"""The results of a sweep: mean and spread over seeds of each cell and setting, and differences to the baseline."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from emulator.console.units import NO_VALUE
from emulator.results.comparison import Spread, headlines_of
from emulator.results.measures import COSTS, Measures
from emulator.results.record import RunRecord
from emulator.sweeps.file import Place, Sweep

COSTS_SAID = "Bytes that devices sent and received"
Table = tuple[list[str], list[list[str]]]  # header, rows
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
    """Hold the records of the completed runs, by place and seed."""

    sweep: Sweep
    records: Mapping[tuple[Place, int], RunRecord]

    @cached_property
    def of(self) -> Measures:
        """Return the measures by name, for the headline metric of the first run."""
        return Measures(headlines_of(self.records.values())[0])

    @cached_property
    def measures(self) -> tuple[str, ...]:
        """Return the names of every run's measures: agreement with the true tasks, the headline metric, and the same on
        each task.
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
        """Return a measure by seed, for the runs that have it. Percents are given as ratios."""
        runs = ((seed, self.records.get((place, seed))) for seed in self.sweep.seeds)
        found = {seed: self.of.named(name).of(run) for seed, run in runs if run is not None}
        return {seed: value for seed, value in found.items() if value is not None}

    def spread(self, place: Place, name: str) -> Spread:
        return Spread.over(list(self.values(place, name).values()))

    def difference(self, place: Place, name: str) -> Difference | None:
        """Return the difference to the baseline in the same setting; None without a baseline, or for the baseline
        itself.
        """
        if self.sweep.baseline is None or place.cell == self.sweep.baseline:
            return None
        own = self.values(place, name)
        other = self.values(Place(cell=self.sweep.baseline, setting=place.setting), name)
        pairs = [own[seed] - other[seed] for seed in own if seed in other]
        sign = 1 if self.of.named(name).higher_is_better else -1
        return Difference(spread=Spread.over(pairs), better=sum(sign * pair > 0 for pair in pairs))

    def table(self) -> Table:
        """Return a table with a row per place: mean ± standard deviation of each measure, shares in percent."""
        return self.table_of(self.measures)

    def cost_table(self) -> Table:
        """Return a table with a row per place: mean ± standard deviation of the bytes that devices have sent and
        received.
        """
        return self.table_of(self.costs)

    def differences(self) -> Table:
        """Return a table with a row per place except the baseline's: paired differences, and the number of better
        ones.
        """
        rows = [
            [*_where(place), *(self._said_difference(self.difference(place, m), m) for m in self.measures)]
            for place in self.sweep.places
            if self.sweep.baseline is not None and place.cell != self.sweep.baseline
        ]
        return [*self._head(), *map(self._heading, self.measures)], rows

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per place and measure, with the columns of `columns`; None for a missing number."""
        return [self._row(place, name) for place in self.sweep.places for name in self._measured]

    @property
    def columns(self) -> dict[str, type]:
        """The columns of `rows` with their kinds."""
        return {**dict.fromkeys(self._head(), str), **MEASURED}

    def csv_text(self) -> str:
        """Return the rows as CSV with full digits. Nothing in them depends on the time or place of the runs."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(self.columns))
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    def markdown(self) -> str:
        """Return both tables as Markdown."""
        text = self.as_markdown(self.table())
        if self.sweep.baseline is not None:
            text += f"\nMinus {self.sweep.baseline}, seed by seed:\n\n{self.as_markdown(self.differences())}"
        return text + (f"\n{COSTS_SAID}:\n\n{self.as_markdown(self.cost_table())}" if self.costs else "")

    @property
    def _measured(self) -> tuple[str, ...]:
        return (*self.measures, *self.fairness, *self.costs)

    def _there(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the measures that any run has."""
        return tuple(
            name for name in names if any(self.of.named(name).of(run) is not None for run in self.records.values())
        )

    def table_of(self, names: Sequence[str]) -> Table:
        """Return a table with a row per place and a column per measure."""
        rows = [
            [*_where(place), str(self._count(place)), *(self._said(self.spread(place, name), name) for name in names)]
            for place in self.sweep.places
        ]
        return [*self._head(), "seeds", *map(self._heading, names)], rows

    def _row(self, place: Place, name: str) -> dict[str, Any]:
        own, difference = self.spread(place, name), self.difference(place, name)
        paired = difference.spread if difference else None
        values = (
            self.of.named(name).column, own.count, own.mean, own.deviation, self.sweep.baseline if difference else None,
            paired and paired.count, paired and paired.mean, paired and paired.deviation,
            difference and difference.better,
        )  # fmt: skip
        return dict(zip(self.columns, (*_where(place), *values), strict=True))

    def _heading(self, name: str) -> str:
        return self.of.named(name).heading(name)

    def _said(self, spread: Spread, name: str, *, sign: str = "") -> str:
        form = self.of.named(name).form
        return NO_VALUE if spread.mean is None else form.said(spread.mean, spread.deviation, sign=sign)

    def _said_difference(self, difference: Difference | None, name: str) -> str:
        """Return the difference in the form +9.9 ± 2.0 (6/6): better than the baseline in six of six pairs."""
        if difference is None or not difference.spread.count:
            return NO_VALUE
        return f"{self._said(difference.spread, name, sign='+')} ({difference.better}/{difference.spread.count})"

    def as_markdown(self, given: Table) -> str:
        """Return a table of these results as Markdown."""
        return as_markdown(*given, self.of.is_number)

    def _head(self) -> list[str]:
        return ["cell", *self.sweep.axes]

    def _count(self, place: Place) -> int:
        return sum((place, seed) in self.records for seed in self.sweep.seeds)


def _where(place: Place) -> list[str]:
    return [place.cell, *(choice for _, choice in place.setting)]


def as_markdown(head: Sequence[str], rows: Sequence[Sequence[str]], is_number: Callable[[str], bool]) -> str:
    """Return a table as Markdown."""
    rule = ["---:" if is_number(name) else "---" for name in head]
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *rows))
