"""Check a bundle. Its tables must follow from its records, and replayed runs must give bit-identical models."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from emulator.reproduce.bundle import Bundle
from emulator.reproduce.page import WRITTEN, section
from emulator.reproduce.reproduce import PAGE, results_in, table_in
from emulator.reproduce.table import TABLE, PublishedTable, find_table
from emulator.results.record import RunRecord
from emulator.results.weights import wrong_models
from emulator.sweeps.file import NAME, SweepRun
from emulator.sweeps.folder import FolderState, completed_record, records_of, state_of
from emulator.sweeps.page import GAINS
from emulator.sweeps.progress import SweepDisplay
from emulator.sweeps.results import SweepResults
from emulator.sweeps.store import SharedFolder
from emulator.sweeps.sweep import SweepRequest, sweep
from emulator.sweeps.tables import markdown
from emulator.sweeps.worth import gains_csv
from fedstrata.errors import DataError, ExperimentError, FedstrataError
from fedstrata.process.quoting import quoted

Done = tuple[SweepRun, RunRecord]  # a completed run
# Compared in addition to the values of metrics.
IN_TABLES = "metrics", "cluster_of_device", "newcomers", "adjusted_rand_index"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Hold the result of replaying one run: each difference from its record."""

    run: SweepRun
    faults: tuple[str, ...]  # empty if the replay equals the record bit for bit


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Hold the result of a check: the faults in a bundle's tables and records, and the replayed runs."""

    complete: int
    faults: tuple[str, ...]
    replays: tuple[Replay, ...]

    @property
    def failure(self) -> DataError | None:
        """The error to raise if the check or a replay found a fault. None if they found no fault."""
        found = [*self.faults, *(f"{each.run.label}: {fault}" for each in self.replays for fault in each.faults)]
        return DataError("; ".join(found)) if found else None


def verify(bundle: Bundle, *, cells: int, seed: int, display: SweepDisplay, jobs: int | None = None) -> Verdict:
    """Check a bundle, and replay some of its completed runs. `cells` is the number of runs to replay. `seed` decides
    which runs are drawn.

    Raises:
        DataError: the bundle has no completed run.
        FedstrataError: a replay is not possible on this machine.
    """
    done = _completed(bundle)
    if not done:
        raise DataError(f"{bundle.folder} has no completed run, so there is nothing to verify")
    faults = [*_wrong_records(done), *_wrong_tables(bundle)]
    places = np.random.default_rng(seed).permutation(len(done))[:cells]
    drawn = [done[place] for place in sorted(places)]
    return Verdict(complete=len(done), faults=tuple(faults), replays=tuple(_replayed(bundle, drawn, display, jobs)))


def _completed(bundle: Bundle) -> list[Done]:
    """Return the completed runs of a bundle. Raises DataError if a run's folder has another experiment than the
    sweep.
    """
    found = []
    for run in bundle.sweep.runs:
        folder = bundle.folder / run.path
        try:
            is_done = state_of(folder, run.experiment) is FolderState.DONE
        except FedstrataError as error:
            raise DataError(f"{run.label}: {error}") from None
        record = completed_record(folder) if is_done else None
        if record is not None:
            found.append((run, record))
    return found


def _wrong_records(done: Sequence[Done]) -> Iterator[str]:
    """Yield a message for each contradiction between a run's summary and its experiment or models."""
    for run, record in done:
        if record.summary.experiment_sha256 != run.experiment.digest:
            yield f"{run.label}: summary.json belongs to another experiment"
        for name in record.summary.model_sha256:
            if not NAME.fullmatch(name):
                yield f"{run.label}: summary.json has a model {name!r:.80}, which cannot be the name of a cluster"
        yield from (f"{run.label}: {said}" for said in wrong_models(record))


def _wrong_tables(bundle: Bundle) -> Iterator[str]:
    """Yield a message for each difference between the bundle's tables and its records. Figures and index.html are not
    checked.
    """
    table = _published(bundle)
    if table is None:
        results = SweepResults(sweep=bundle.sweep, records=records_of(bundle.folder, bundle.sweep))
        if (bundle.folder / PAGE).exists():
            yield f"{PAGE} has published values, but the file with these values, {TABLE}, is missing"
    else:
        results = results_in(bundle.folder, table)
        yield from _wrong_published(table)
        yield from _wrong_text(bundle.folder / PAGE, section(table, results, {}))
    yield from _wrong_csv(bundle.folder / "table.csv", results)
    yield from _wrong_text(bundle.folder / "table.md", markdown(results))
    gains, path = gains_csv(results), bundle.folder / GAINS
    if gains or path.exists():
        yield from _wrong_text(path, gains or "")


def _published(bundle: Bundle) -> PublishedTable | None:
    path = bundle.folder / TABLE
    if not path.is_file() or path.is_symlink():
        return None
    table = table_in(bundle.folder)
    if [run.experiment.digest for run in table.sweep.runs] != [run.experiment.digest for run in bundle.sweep.runs]:
        raise DataError(
            f"{path} has other experiments than sweep.yaml, so the bundle mixes two sweeps; give another bundle"
        )
    return replace(table, sweep=bundle.sweep)


def _wrong_published(table: PublishedTable) -> Iterator[str]:
    """Yield a message for each difference between the bundle's published table and the table of the same name in the
    installed Fedstrata. Values, measure, decimals and experiments are compared.
    """
    try:
        own = find_table(table.name).with_seeds(table.sweep.seeds)
    except ExperimentError:
        return
    for place in dict.fromkeys([*own.values, *table.values]):
        if own.values.get(place) != table.values.get(place):
            yield f"{place.label}: the published value differs from this Fedstrata's table"
    if (own.about.measure, own.about.decimals) != (table.about.measure, table.about.decimals):
        yield f"{TABLE}: measure or decimals differ from this Fedstrata's table"
    if [run.experiment.digest for run in own.sweep.runs] != [run.experiment.digest for run in table.sweep.runs]:
        yield f"{TABLE}: the experiments differ from this Fedstrata's table"


def _wrong_csv(path: Path, results: SweepResults) -> Iterator[str]:
    """Yield a message for each row of table.csv that differs from the records."""
    try:
        found = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    expected = list(csv.reader(results.csv_text().splitlines()))
    axes = len(results.sweep.axes)
    if len(found) != len(expected):
        yield f"table.csv has {len(found)} rows, but the records give {len(expected)}"
    for said, true in zip(found, expected, strict=False):
        if said != true:
            wrong = next((pair for pair in zip(said, true, strict=False) if pair[0] != pair[1]), ("", ""))
            cell, measure = ", ".join(true[: 1 + axes]), true[1 + axes]
            yield f"table.csv: {cell}: {measure} is {wrong[0]!r:.40}, but the records give {wrong[1]!r:.40}"


def _wrong_text(path: Path, expected: str) -> Iterator[str]:
    """Yield a message for the first line of a file that differs from the expected text, which the records give."""
    try:
        found = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    for said, true in zip_longest(_lines(found), _lines(expected), fillvalue=""):
        if said != true:
            yield f"{path.name} has the row {said!r:.120}, but the records give {true or 'none'}"
            return


def _lines(text: str) -> list[str]:
    """Return the lines of a page, except for the line about the machine that wrote it."""
    return [line for line in text.splitlines() if not line.startswith(WRITTEN)]


def _replayed(bundle: Bundle, drawn: Sequence[Done], display: SweepDisplay, jobs: int | None) -> Iterator[Replay]:
    """Do the drawn runs again in a temporary folder. Yield for each run the differences in models and measurements."""
    if not drawn:
        return
    with TemporaryDirectory(prefix="fedstrata-verify-") as place:
        part = bundle.sweep.only(run for run, _ in drawn)
        outcome = sweep(SweepRequest(sweep=part, store=SharedFolder(Path(place)), jobs=jobs), display)
        if outcome.failure is not None:
            raise outcome.failure
        for run, theirs in drawn:
            ours = outcome.results.records[run.place, run.seed]
            yield Replay(run=run, faults=tuple(_differences(theirs, ours)))


def _differences(theirs: RunRecord, ours: RunRecord) -> Iterator[str]:
    """Yield a message for each model or measurement that differs between a record and its replay.

    If the record says that it was computed with other kernels than the replay, bits cannot be compared. Then the only
    message is about the kernels. This counts as a difference, because a forged record could name other kernels to avoid
    the comparison. Records of Fedstrata 0.2.0 name the kernels of OpenBLAS, without the digits of torch's bits.
    """
    said, true = set(theirs.summary.kernels), set(ours.summary.kernels)
    is_old = not any("-" in kernel for kernel in said)
    if said != ({kernel.partition("-")[0] for kernel in true} if is_old else true):
        yield (
            f"bits cannot be compared, because the record has the kernels {quoted(*sorted(said))}, but this processor "
            f"has {quoted(*sorted(true))}; verify the bundle on a processor with the record's kernels"
        )
        return
    faults = list(_different_bits(theirs, ours))
    yield from faults
    if faults and is_old:
        yield "the record does not name torch's kernels, so all this is expected on a processor of another maker"


def _different_bits(theirs: RunRecord, ours: RunRecord) -> Iterator[str]:
    for what, said, true in (
        ("model", theirs.summary.model_sha256, ours.summary.model_sha256),
        ("model that stays on", theirs.summary.personal_sha256, ours.summary.personal_sha256),
    ):
        for name in sorted({*said, *true}):
            if said.get(name) != true.get(name):
                yield f"the {what} {name} is {_short(said.get(name))}, but {_short(true.get(name))} in the replay"
    for name in IN_TABLES:
        if getattr(theirs.summary, name) != getattr(ours.summary, name):
            yield f"{name} differs from the replay"
    for metric in ours.summary.metrics:
        pair = theirs.summary.measured.get(metric.name), ours.summary.measured[metric.name]
        said_values, true_values = (dict(each.all_values(metric.name)) if each else {} for each in pair)
        for key in sorted({*said_values, *true_values}):
            if said_values.get(key) != true_values.get(key):
                yield f"{key} is {said_values.get(key)}, but {true_values.get(key)} in the replay"


def _short(sha256: str | None) -> str:
    return "none" if sha256 is None else sha256[:12]
