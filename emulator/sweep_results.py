"""What a sweep came to: mean and spread over seeds of each cell and setting, and differences to the baseline."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from emulator.comparison import MEAN, Spread, accuracy_of
from emulator.record import RunRecord
from emulator.report.units import NO_VALUE
from emulator.sweep_file import Place, Sweep

ARI = "ARI"  # the adjusted Rand index; no task is called so, their names are in small letters
Table = tuple[list[str], list[list[str]]]  # header, rows
MEASURED: Mapping[str, type] = {
    "measure": str, "seeds": int, "mean": float, "std": float, "baseline": str, "pairs": int,
    "difference_mean": float, "difference_std": float, "above": int,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A cell's values minus the baseline's, pair by pair over the seeds that both have."""

    spread: Spread
    above: int  # in how many pairs the cell's is the greater


@dataclass(frozen=True, kw_only=True)
class SweepResults:
    """The records of the runs that are completed, by place and seed."""

    sweep: Sweep
    records: Mapping[tuple[Place, int], RunRecord]

    @cached_property
    def measures(self) -> tuple[str, ...]:
        """What is measured of every run: its mean accuracy, that of each true task, the adjusted Rand index."""
        tasks = dict.fromkeys(task for run in self.records.values() for task in run.summary.task_accuracy or ())
        has_index = any(run.summary.adjusted_rand_index is not None for run in self.records.values())
        return (*((ARI,) if has_index else ()), MEAN, *tasks)

    def values(self, place: Place, measure: str) -> dict[int, float]:
        """A measure by seed, of the runs that have it; accuracies are ratios."""
        runs = ((seed, self.records.get((place, seed))) for seed in self.sweep.seeds)
        found = {seed: _measured(run, measure) for seed, run in runs if run is not None}
        return {seed: value for seed, value in found.items() if value is not None}

    def spread(self, place: Place, measure: str) -> Spread:
        return Spread.over(list(self.values(place, measure).values()))

    def difference(self, place: Place, measure: str) -> Difference | None:
        """To the baseline in the same setting; None without a baseline, and of the baseline itself."""
        if self.sweep.baseline is None or place.cell == self.sweep.baseline:
            return None
        own = self.values(place, measure)
        other = self.values(Place(cell=self.sweep.baseline, setting=place.setting), measure)
        pairs = [own[seed] - other[seed] for seed in own if seed in other]
        return Difference(spread=Spread.over(pairs), above=sum(pair > 0 for pair in pairs))

    def table(self) -> Table:
        """A row a place: mean ± standard deviation of each measure, accuracies in percent."""
        rows = [
            [*_where(place), str(self._count(place)), *(_said(self.spread(place, m), m) for m in self.measures)]
            for place in self.sweep.places
        ]
        return [*self._head(), "seeds", *map(_heading, self.measures)], rows

    def differences(self) -> Table:
        """A row a place that is not the baseline's: paired differences, and in how many pairs it is above."""
        rows = [
            [*_where(place), *(_said_difference(self.difference(place, m), m) for m in self.measures)]
            for place in self.sweep.places
            if self.sweep.baseline is not None and place.cell != self.sweep.baseline
        ]
        return [*self._head(), *map(_heading, self.measures)], rows

    def rows(self) -> list[dict[str, Any]]:
        """A row a place and measure, with the columns of `columns`; None where there is no number."""
        return [self._row(place, measure) for place in self.sweep.places for measure in self.measures]

    @property
    def columns(self) -> dict[str, type]:
        """The columns of `rows` with their kinds."""
        return {**dict.fromkeys(self._head(), str), **MEASURED}

    def csv_text(self) -> str:
        """The rows in full; nothing in them depends on when or where the runs were done."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(self.columns))
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    def markdown(self) -> str:
        """Both tables, to be put into a document."""
        text = _markdown(*self.table())
        if self.sweep.baseline is not None:
            text += f"\nMinus {self.sweep.baseline}, seed by seed:\n\n{_markdown(*self.differences())}"
        return text

    def _row(self, place: Place, measure: str) -> dict[str, Any]:
        own, difference = self.spread(place, measure), self.difference(place, measure)
        paired = difference.spread if difference else None
        values = (
            _column(measure), own.count, own.mean, own.deviation, self.sweep.baseline if difference else None,
            paired and paired.count, paired and paired.mean, paired and paired.deviation,
            difference and difference.above,
        )  # fmt: skip
        return dict(zip(self.columns, (*_where(place), *values), strict=True))

    def _head(self) -> list[str]:
        return ["cell", *self.sweep.axes]

    def _count(self, place: Place) -> int:
        return sum((place, seed) in self.records for seed in self.sweep.seeds)


def is_number(heading: str) -> bool:
    """Whether a table's column of this heading holds numbers."""
    return heading in ("seeds", ARI) or heading.endswith("%")


def _measured(run: RunRecord, measure: str) -> float | None:
    return run.summary.adjusted_rand_index if measure == ARI else accuracy_of(run, measure)


def _where(place: Place) -> list[str]:
    return [place.cell, *(choice for _, choice in place.setting)]


def _heading(measure: str) -> str:
    return measure if measure == ARI else f"{measure} %"


def _column(measure: str) -> str:
    return {ARI: "adjusted_rand_index", MEAN: "mean_accuracy"}.get(measure, f"accuracy_{measure}")


def _said(spread: Spread, measure: str, *, sign: str = "") -> str:
    """As 73.5 ± 1.2 in percent; an adjusted Rand index as 0.98 ± 0.03."""
    if spread.mean is None:
        return NO_VALUE
    factor, digits = (1, 2) if measure == ARI else (100, 1)
    deviation = "" if spread.deviation is None else f" ± {factor * spread.deviation:.{digits}f}"
    return f"{factor * spread.mean:{sign}.{digits}f}{deviation}".replace("-", "−")


def _said_difference(difference: Difference | None, measure: str) -> str:
    """As +9.9 ± 2.0 (6/6): above the baseline in six pairs of six."""
    if difference is None or not difference.spread.count:
        return NO_VALUE
    return f"{_said(difference.spread, measure, sign='+')} ({difference.above}/{difference.spread.count})"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---:" if is_number(name) else "---" for name in head]
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *rows))
