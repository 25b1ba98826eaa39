"""The check of a bundle: its tables follow from its records, and replayed cells give the same models to the bit."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from emulator.reproduce.bundle import Bundle
from emulator.reproduce.page import comparison_rows
from emulator.reproduce.reproduce import PAGE, results_in, table_in
from emulator.reproduce.table import TABLE, PublishedTable, find_table
from emulator.results.record import RunRecord
from emulator.results.trained import read_weights
from emulator.sweeps.file import Sweep, SweepRun
from emulator.sweeps.folder import RoundStart, completed_record, records_of, standing
from emulator.sweeps.progress import SweepDisplay
from emulator.sweeps.results import SweepResults
from emulator.sweeps.sweep import SweepRequest, sweep
from emulator.sweeps.tables import markdown
from fedstrata.errors import DataError, ExperimentError, FedstrataError
from fedstrata.tensors import values_digest

Done = tuple[SweepRun, RunRecord]  # a completed run


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Hold the result of repeating one run."""

    run: SweepRun
    faults: tuple[str, ...]  # none: equal to the bit
    is_other_processor: bool = False  # so that equal bits cannot be expected


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Hold what is wrong with a bundle's tables and records, and the replayed runs."""

    complete: int
    faults: tuple[str, ...]
    replays: tuple[Replay, ...]

    @property
    def failure(self) -> DataError | None:
        """The error to raise if something is wrong; None if nothing is."""
        found = [*self.faults, *(f"{each.run.label}: {fault}" for each in self.replays for fault in each.faults)]
        return DataError("; ".join(found)) if found else None


def verify(bundle: Bundle, *, cells: int, seed: int, display: SweepDisplay, jobs: int | None = None) -> Verdict:
    """Check a bundle, and replay `cells` of its completed runs, which are drawn by `seed`.

    Raises:
        DataError: the bundle has no completed run. FedstrataError: a replay cannot be done here.
    """
    done = _completed(bundle)
    if not done:
        raise DataError(f"{bundle.folder} has no completed run, so there is nothing to verify")
    faults = [*_wrong_records(done), *_wrong_tables(bundle)]
    places = np.random.default_rng(seed).permutation(len(done))[:cells]
    drawn = [done[place] for place in sorted(places)]
    return Verdict(complete=len(done), faults=tuple(faults), replays=tuple(_replayed(bundle, drawn, display, jobs)))


def _completed(bundle: Bundle) -> list[Done]:
    """Return the completed runs of a bundle. Raises DataError if a folder holds another experiment than the sweep's."""
    found = []
    for run in bundle.sweep.runs:
        folder = bundle.folder / run.path
        try:
            is_done = standing(folder, run.experiment) is RoundStart.DONE
        except FedstrataError as error:
            raise DataError(f"{run.label}: {error}") from None
        record = completed_record(folder) if is_done else None
        if record is not None:
            found.append((run, record))
    return found


def _wrong_records(done: Sequence[Done]) -> Iterator[str]:
    """Yield a message for each summary that contradicts its run's experiment or models."""
    for run, record in done:
        if record.summary.experiment_sha256 != run.experiment.digest:
            yield f"{run.label}: summary.json is of another experiment"
        for name, expected in record.summary.model_sha256.items():
            path = record.folder / "models" / f"{name}.safetensors"
            if path.is_file() and _weights_sha256(record.folder, name) != expected:
                yield f"{run.label}: {path.name} has other weights than the model_sha256 of summary.json"


def _weights_sha256(folder: Path, cluster: str) -> str:
    """Return the digest of the tensors in a model file, as a run computes it. Raises DataError for a damaged file."""
    weights = read_weights(folder, cluster)
    return values_digest((name, str(array.dtype), array.shape, [array.tobytes()]) for name, array in weights.items())


def _wrong_tables(bundle: Bundle) -> Iterator[str]:
    """Yield a message for each row of the bundle's tables that does not follow from its records."""
    table = _published(bundle)
    if table is None:
        results = SweepResults(sweep=bundle.sweep, records=records_of(bundle.folder, bundle.sweep))
    else:
        results = results_in(bundle.folder, table)
        yield from _wrong_published(table)
        yield from _missing_lines(bundle.folder / PAGE, _lines(comparison_rows(table, results)[1]))
    yield from _wrong_csv(bundle.folder / "table.csv", results)
    yield from _missing_lines(bundle.folder / "table.md", markdown(results).splitlines())


def _published(bundle: Bundle) -> PublishedTable | None:
    path = bundle.folder / TABLE
    if not path.is_file() or path.is_symlink():
        return None
    table = table_in(bundle.folder)
    if [run.experiment.digest for run in table.sweep.runs] != [run.experiment.digest for run in bundle.sweep.runs]:
        raise DataError(f"{path} has other experiments than sweep.yaml; the bundle was put together from two")
    return replace(table, sweep=bundle.sweep)


def _wrong_published(table: PublishedTable) -> Iterator[str]:
    """Yield a message for each published value that differs from the table with this name in this Fedstrata."""
    try:
        own = find_table(table.sweep.runs[0].experiment.name)
    except ExperimentError:
        return
    for place, value in table.values.items():
        if own.values.get(place) != value:
            yield f"{place.label}: the published value is {value.mean:g} here, and not so in this Fedstrata's table"


def _wrong_csv(path: Path, results: SweepResults) -> Iterator[str]:
    """Yield a message for each row of table.csv that differs from the records."""
    try:
        found = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    expected = list(csv.reader(results.csv_text().splitlines()))
    axes = len(results.sweep.axes)
    if len(found) != len(expected):
        yield f"table.csv has {len(found)} rows, and the records give {len(expected)}"
    for said, true in zip(found, expected, strict=False):
        if said != true:
            wrong = next((pair for pair in zip(said, true, strict=False) if pair[0] != pair[1]), ("", ""))
            cell, measure = ", ".join(true[: 1 + axes]), true[1 + axes]
            yield f"table.csv: {cell}: {measure} has {wrong[0]!r:.40}, and the records give {wrong[1]!r:.40}"


def _missing_lines(path: Path, expected: Sequence[str]) -> Iterator[str]:
    """Yield a message for each expected line that a page does not have."""
    try:
        lines = set(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    for line in expected:
        if line not in lines:
            yield f"{path.name}: the records give the row {line}, which is not there"


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in rows]


def _replayed(bundle: Bundle, drawn: Sequence[Done], display: SweepDisplay, jobs: int | None) -> Iterator[Replay]:
    """Do the drawn runs again in a temporary folder, and compare models and measurements."""
    runs = tuple(run for run, _ in drawn)
    if not runs:
        return
    with TemporaryDirectory(prefix="fedstrata-verify-") as place:
        outcome = sweep(SweepRequest(sweep=_only(bundle.sweep, runs), out=Path(place), jobs=jobs), display)
        if outcome.failure is not None:
            raise outcome.failure
        for run, theirs in drawn:
            ours = outcome.results.records[run.place, run.seed]
            faults = tuple(_differences(theirs, ours))
            is_other = set(theirs.summary.kernels) != set(ours.summary.kernels)
            yield Replay(run=run, faults=() if is_other else faults, is_other_processor=is_other)


def _only(given: Sweep, runs: tuple[SweepRun, ...]) -> Sweep:
    return replace(
        given,
        runs=runs,
        places=tuple(dict.fromkeys(run.place for run in runs)),
        seeds=tuple(dict.fromkeys(run.seed for run in runs)),
        baseline=None,
    )


def _differences(theirs: RunRecord, ours: RunRecord) -> Iterator[str]:
    """Yield a message for each model or measurement that differs between a record and its repetition."""
    for what, said, true in (
        ("model", theirs.summary.model_sha256, ours.summary.model_sha256),
        ("model that stays on", theirs.summary.personal_sha256, ours.summary.personal_sha256),
    ):
        for name in sorted({*said, *true}):
            if said.get(name) != true.get(name):
                yield f"the {what} {name} has {_short(said.get(name))}, and the replay {_short(true.get(name))}"
    for metric in ours.summary.metrics:
        pair = theirs.summary.measured.get(metric.name), ours.summary.measured[metric.name]
        said_values, true_values = (dict(each.all_values(metric.name)) if each else {} for each in pair)
        for key in sorted({*said_values, *true_values}):
            if said_values.get(key) != true_values.get(key):
                yield f"{key} is {said_values.get(key)}, and {true_values.get(key)} in the replay"


def _short(sha256: str | None) -> str:
    return "none" if sha256 is None else sha256[:12]
