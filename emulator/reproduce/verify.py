"""Check a bundle. Its tables must follow from its records, and replayed runs must give bit-identical models."""

import csv
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from emulator.console.units import counted
from emulator.reproduce.bundle import Bundle
from emulator.reproduce.differences import differences, short
from emulator.reproduce.published import TABLE, PublishedTable, find_table
from emulator.reproduce.reproduce import PAGE, results_in, table_in
from emulator.reproduce.table_page import WRITTEN, section
from emulator.results.read_record import RunRecord, load_record
from emulator.results.report.run_page import document_of, page_of
from emulator.results.weights import wrong_models
from emulator.sweeps.file import NAME, SweepRun
from emulator.sweeps.results import SweepResults
from emulator.sweeps.store import SharedFolder
from emulator.sweeps.sweep import SweepRequest, sweep
from emulator.sweeps.sweep_folder import SWEEP, records_of, state_of
from emulator.sweeps.sweep_page import GAINS
from emulator.sweeps.sweep_progress import SweepDisplay
from emulator.sweeps.text_tables import markdown
from emulator.sweeps.worth import gains_csv
from fedstrata.errors import DataError, DifferenceError, ExperimentError, FedstrataError, IncomparableError
from fedstrata.experiment import Experiment
from fedstrata.record.summary import LinkBytes
from fedstrata.record.tables import read_text

Done = tuple[SweepRun, RunRecord]  # a completed run


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Hold the result of replaying one run: each difference from its record."""

    run: SweepRun
    faults: tuple[str, ...]  # empty if the replay equals the record bit for bit, or cannot be compared
    incomparable: str = ""  # why the bits cannot be compared; empty if they can


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Hold the result of a check: the faults in a bundle's tables and records, and the replayed runs."""

    complete: int
    incomplete: tuple[str, ...]  # runs of the sweep without a completed record
    may_be_partial: bool  # whether incomplete runs are no fault
    faults: tuple[str, ...]
    replays: tuple[Replay, ...]

    @property
    def is_comparable(self) -> bool:
        """Return whether the bits of all replayed runs can be compared on this processor."""
        return not any(each.incomparable for each in self.replays)

    @property
    def failure(self) -> FedstrataError | None:
        """The error to raise, or None. If there is a fault, this is a DifferenceError. Otherwise, if a run is missing,
        it is a DataError. If neither is the case, but a replay cannot be compared, it is an IncomparableError.
        """
        found = [*self.faults, *(f"{each.run.label}: {fault}" for each in self.replays for fault in each.faults)]
        kind: type[FedstrataError] = DifferenceError if found else IncomparableError
        if self.incomplete and not self.may_be_partial:
            missing, runs = len(self.incomplete), self.complete + len(self.incomplete)
            found.append(
                f"{missing} of {counted(runs, 'run')} without a completed record; ask for the record, or check the "
                "other runs with --partial"
            )
            kind = DataError if kind is IncomparableError else kind
        found += [f"{each.run.label}: {each.incomparable}" for each in self.replays if each.incomparable]
        return kind("; ".join(found)) if found else None


def verify(
    bundle: Bundle, *, cells: int, seed: int, may_be_partial: bool, display: SweepDisplay, jobs: int | None = None
) -> Verdict:
    """Check a bundle, and replay some of its completed runs. `cells` is the number of runs to replay. `seed` decides
    which runs are drawn. Unless `may_be_partial`, a run without a completed record is a fault.

    Raises:
        DataError: the bundle has no completed run.
        FedstrataError: a replay is not possible on this machine.
    """
    done = _completed(bundle)
    if not done:
        raise DataError(f"{bundle.folder} has no completed run, so there is nothing to verify")
    complete = {run.path for run, _ in done}
    faults = [*_strange_runs(bundle), *_wrong_records(done), *_wrong_tables(bundle)]
    places = np.random.default_rng(seed).permutation(len(done))[:cells]
    drawn = [done[place] for place in sorted(places)]
    return Verdict(
        complete=len(done),
        incomplete=tuple(run.label for run in bundle.sweep.runs if run.path not in complete),
        may_be_partial=may_be_partial,
        faults=tuple(faults),
        replays=tuple(_replayed(bundle, drawn, display, jobs)),
    )


def _completed(bundle: Bundle) -> list[Done]:
    """Return the completed runs of a bundle. Raises DataError if a run's folder has another experiment than the
    sweep, or a damaged record.
    """
    found = []
    for run in bundle.sweep.runs:
        folder = bundle.folder / run.path
        try:
            state_of(folder, run.experiment)
            record = load_record(folder) if (folder / "summary.json").exists() else None
        except FedstrataError as error:
            raise DataError(f"{run.label}: {error}") from None
        if record is not None and record.summary.status == "completed":
            found.append((run, record))
    return found


def _strange_runs(bundle: Bundle) -> Iterator[str]:
    """Yield a message for each folder in `runs` that belongs to no run of the sweep. Such a folder could be a run with
    a bad result, of which the cell or seed was removed from the sweep.
    """
    known = {bundle.folder / run.path for run in bundle.sweep.runs}
    above = {parent for path in known for parent in path.parents}
    for folder, inner, _ in os.walk(bundle.folder / "runs"):
        for path in sorted(Path(folder, name) for name in inner):
            if path not in known | above:
                yield f"{path.relative_to(bundle.folder)} is not a run of {SWEEP}; add its cell and seed, or remove it"
        inner[:] = [name for name in inner if Path(folder, name) in above]


def _wrong_records(done: Sequence[Done]) -> Iterator[str]:
    """Yield a message for each contradiction between the files of a run, or between a run and its experiment."""
    for run, record in done:
        found = (*_strange_keys(record), *_wrong_keys(run.experiment, record), *_wrong_page(record))
        yield from (f"{run.label}: {said}" for said in (*found, *_missing_models(record), *wrong_models(record)))


def _strange_keys(record: RunRecord) -> Iterator[str]:
    """Yield a message for the first entry of summary.json that the reader ignores: an unknown key, a key that is there
    twice, or a value in another form.
    """
    text = read_text(record.folder / "summary.json")
    found, true = (json.loads(each, object_pairs_hook=tuple) for each in (text, record.summary.text()))
    if strange := [entry for entry in found if found.count(entry) > 1 or entry not in true]:
        yield f"{strange[0][0]!r:.80} of summary.json is unknown, there twice or of another form; remove it"


def _wrong_keys(experiment: Experiment, record: RunRecord) -> Iterator[str]:
    """Yield a message for each key of summary.json that contradicts the experiment or rounds.csv."""
    summary, tasks = record.summary, experiment.task_of_devices()
    expected = {
        "experiment_sha256": experiment.digest,
        "run_id": experiment.run_id,
        "name": experiment.name,
        "seed": experiment.seed,
        "method": experiment.method.name,
        "devices": experiment.device_count,
        "device_tasks": dict(zip(experiment.device_ids(), tasks, strict=True)) if tasks else None,
    }
    for key, true in expected.items():
        if getattr(summary, key) != true:
            yield f"{key} of summary.json is {short(getattr(summary, key))}, but the experiment gives {short(true)}"
    for link, total in summary.bytes.items() if summary.bytes_by_kind else ():
        kinds = summary.bytes_by_kind.get(link, {}).values()
        if (total.up, total.down) != (sum(each.up for each in kinds), sum(each.down for each in kinds)):
            yield f"bytes of {link} in summary.json are not the sums of bytes_by_kind"
    sums = LinkBytes(up=sum(row.bytes_up for row in record.rounds), down=sum(row.bytes_down for row in record.rounds))
    if summary.training_bytes not in (None, sums):
        yield "training_bytes of summary.json are not the sums of rounds.csv"


def _missing_models(record: RunRecord) -> Iterator[str]:
    for name in record.summary.model_sha256:
        if not NAME.fullmatch(name):
            yield f"summary.json has a model {name!r:.80}, which cannot be the name of a cluster"
        elif not (record.folder / "models" / f"{name}.safetensors").exists():
            yield f"models/{name}.safetensors is missing"


def _wrong_page(record: RunRecord) -> Iterator[str]:
    """Yield a message if report.html is not the page that this Fedstrata draws from the record. If the data set is not
    on this machine, or was not on the machine that drew the page, the labels of devices are not compared.
    """
    path = record.folder / "report.html"
    if not path.exists():
        return
    text, document = read_text(path), document_of(record)
    own = document["parts"]["label_picture"]
    for labels in [own, None] if own is not None else [_labels_in(text)]:
        document["parts"]["label_picture"] = labels
        if page_of(record, document) == text:
            return
    yield f"{path.name} is not the page of this record; draw it again with `fedstrata report`"


def _labels_in(page: str) -> Any:
    """Return the labels of devices that a page has, or None."""
    found = re.search(r'id="document">(.*?)</script>', page)
    try:
        return json.loads(found[1])["parts"]["label_picture"] if found else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


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
    installed Fedstrata.
    """
    try:
        own = find_table(table.name)
    except ExperimentError as error:
        yield f"{TABLE}: {error}"
        return
    if lacking := sorted(set(own.sweep.seeds) - set(table.sweep.seeds)):
        yield f"{TABLE}: the table of this Fedstrata also has the seeds {', '.join(map(str, lacking))}"
    own = own.with_seeds(table.sweep.seeds)
    for place in dict.fromkeys([*own.values, *table.values]):
        if own.values.get(place) != table.values.get(place):
            yield f"{place.label}: the published value differs from this Fedstrata's table"
    for key, true in own.about:
        if key != "values" and getattr(table.about, key) != true:
            yield f"{TABLE}: {key} differs from this Fedstrata's table"
    if [run.experiment.digest for run in own.sweep.runs] != [run.experiment.digest for run in table.sweep.runs]:
        yield f"{TABLE}: the experiments differ from this Fedstrata's table"


def _wrong_csv(path: Path, results: SweepResults) -> Iterator[str]:
    """Yield a message for the first row of table.csv that differs from the records."""
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
            return


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
            try:
                yield Replay(run=run, faults=tuple(differences(theirs, ours)))
            except IncomparableError as error:
                yield Replay(run=run, faults=(), incomparable=str(error))
