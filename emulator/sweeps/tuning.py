"""Choose values before a sweep: do the runs of all candidates as a separate sweep, and take the best candidate for each
row.

The sweep of candidates has its own folder, `tuning`, with the same tables as any sweep. So an interrupted sweep of
candidates can continue, and several machines can share it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.sweeps.file import NAME, Place, Sweep, SweepFile, name_of, read_document, sweep_file, sweep_of
from emulator.sweeps.results import SweepResults
from emulator.sweeps.selection import selection_of
from emulator.sweeps.store import SweepStore
from emulator.sweeps.sweep import SweepRequest, sweep
from emulator.sweeps.sweep_folder import TUNING, check_folder
from emulator.sweeps.sweep_progress import SweepDisplay
from emulator.sweeps.tune_section import Overrides, TuneSettings
from fedstrata.errors import RunStoppedError


@dataclass(frozen=True, kw_only=True)
class SweepSource:
    """Hold the arguments of `sweep_of`: the content of a sweep file, the sweep's name, and the file's place."""

    document: Any
    name: str
    where: str
    beside: Path

    @classmethod
    def of_file(cls, path: Path) -> "SweepSource":
        """Read a sweep file. Raises ExperimentError if it cannot be read."""
        name = path.stem if path.name != "sweep.yaml" else path.resolve().parent.name
        return cls(document=read_document(path, "sweep file"), name=name, where=str(path), beside=path.parent)

    def sweep(self, chosen: Mapping[str, Overrides] | None = None) -> Sweep:
        """Return the sweep, with chosen values by row. Raises ExperimentError if a value is not allowed."""
        document = self.document
        if chosen is not None:
            document = {**document, "tune": {**document["tune"], "chosen": dict(chosen)}}
        return sweep_of(document, name=self.name, where=self.where, beside=self.beside)


def tuned_sweep(source: SweepSource, store: SweepStore, jobs: int | None, display: SweepDisplay) -> Sweep:
    """Return the sweep in a file. If the file tunes and has no chosen values yet, do the runs of all candidates first.
    These runs are not tracked.

    Raises:
        FedstrataError: a value is not allowed, a run failed for another reason than divergence, or all candidates of a
            row diverged.
    """
    file = sweep_file(source.document, source.where)
    if file.tune is None or file.tune.chosen is not None:
        return source.sweep()
    check_folder(store.folder)
    tuning, _ = sweeps_to_do(source)
    candidates = sweep_file(candidates_of(source.document, file, file.tune), f"{source.where}: tune")
    outcome = sweep(SweepRequest(sweep=tuning, store=store.within(TUNING), jobs=jobs), display)
    if outcome.fault is not None:
        raise RunStoppedError(f"tune: {outcome.fault}")
    return source.sweep(choices(outcome.results, candidates, file.tune.grid))


def sweeps_to_do(source: SweepSource) -> tuple[Sweep, Sweep | None]:
    """Return two sweeps: all candidates, and the file's own sweep with the first candidate's values. If nothing is left
    to choose, return the file's own sweep and None. Raises ExperimentError if a value is not allowed.
    """
    file = sweep_file(source.document, source.where)
    if file.tune is None or file.tune.chosen is not None:
        return source.sweep(), None
    document, where = candidates_of(source.document, file, file.tune), f"{source.where}: tune"
    first = first_of(sweep_file(document, where), file.tune.grid)
    table = source.sweep(dict.fromkeys((place.label for place in file.places()), first))
    return sweep_of(document, name=f"{source.name}-{TUNING}", where=where, beside=source.beside), table


def candidates_of(document: Mapping[str, Any], file: SweepFile, tune: TuneSettings) -> dict[str, Any]:
    """Return the sweep file of all candidates. The keys of the grid become further axes, so each row of the table has
    the same number of candidates.
    """
    chosen_on = selection_of(tune, file.seeds)
    kept = {key: value for key, value in document.items() if key not in {"tune", "baseline"}}
    cells = {name: {**own, **chosen_on.changes} for name, own in file.cells.items()}
    return {
        **kept, "seeds": list(chosen_on.seeds), "cells": cells,
        "vary": {**document.get("vary", {}), **{key: _axis(key, values) for key, values in tune.grid.items()}},
    }  # fmt: skip


def _axis(key: str, values: Sequence[Any]) -> Any:
    """Return the values of a key in the grid as an axis of `vary`. If a value, such as a list, cannot be the name of a
    choice, the names are value-1, value-2, ….
    """
    if all(NAME.fullmatch(name_of(value)) for value in values):
        return values
    return {f"value-{number}": {key: value} for number, value in enumerate(values, 1)}


def first_of(candidates: SweepFile, grid: Iterable[str]) -> Overrides:
    """Return the values of the first candidate. The sweep is checked with these values before the first run."""
    return {key: value for axis in grid for key, value in next(iter(candidates.vary[axis].values())).items()}


def choices(results: SweepResults, candidates: SweepFile, grid: Collection[str]) -> dict[str, Overrides]:
    """Return, by row of the table, the values of the best candidate. Of equally good candidates, take the first in the
    grid's order. A candidate cannot win if its training diverged for a seed.

    Raises:
        RunStoppedError: no candidate of a row has the main measure for all seeds.
    """
    sign = 1 if results.of.named(results.main).higher_is_better else -1
    best: dict[str, tuple[float, Overrides]] = {}
    rows = [
        Place(cell=place.cell, setting=tuple(pair for pair in place.setting if pair[0] not in grid)).label
        for place in results.sweep.places
    ]
    for place, row in zip(results.sweep.places, rows, strict=True):
        spread = results.spread(place, results.main)
        if spread.mean is None or spread.count < len(results.sweep.seeds):
            continue
        values: Overrides = {}
        for axis, choice in place.setting:
            values |= candidates.vary[axis][choice] if axis in grid else {}
        if row not in best or sign * spread.mean > best[row][0]:
            best[row] = (sign * spread.mean, values)
    for row in rows:
        if row not in best:
            raise RunStoppedError(f"tune: no candidate of {row} has {results.of.metric.name} for all seeds; try others")
    return {row: values for row, (_, values) in best.items()}
