"""Do the missing runs of a published table, and write the pages that compare the published values with ours."""

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from emulator.reproduce.published import TABLE, PublishedTable, find_table, load_table, selected
from emulator.reproduce.table_page import section, tally
from emulator.sweeps.claims import turn_at
from emulator.sweeps.results import SweepResults
from emulator.sweeps.store import SharedFolder
from emulator.sweeps.sweep import SweepOutcome, SweepRequest, sweep
from emulator.sweeps.sweep_folder import records_of
from emulator.sweeps.sweep_page import write_results
from emulator.sweeps.sweep_progress import SweepDisplay
from fedstrata.errors import ExperimentError, OutputError
from fedstrata.process.machine import commit, installed, processor

PAGE = "reproduced.md"
SEED = re.compile(r"seed-(\d+)")
INTRODUCTION = """# Reproduced tables

<!-- results of all tables -->

{tally}

`ours` is the mean ± sample standard deviation over seeds, and `theirs` is as published. `within 2 sd` says that the
two means differ by at most 2 √(a² + b²), where a and b are the two deviations, plus half a unit of the last published
digit. An unknown deviation counts as 0. `models` is the beginning of a SHA-256 of all models of a run.

<!-- end of results -->
"""


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest:
    """Hold the arguments of `fedstrata reproduce`."""

    name: str
    out: Path  # the folder of all tables, with a subfolder for each
    cells: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    jobs: int | None = None


def reproduce(request: ReproduceRequest, display: SweepDisplay) -> SweepOutcome:
    """Do the missing runs of a table. Write the page of the table, and the page of all tables in `request.out`.

    The results include all completed runs in the table's folder, also the runs of earlier calls.

    Raises:
        FedstrataError: nothing was started because something is wrong.
        KeyboardInterrupt: a signal interrupted the runs. The same call continues them.
    """
    folder = request.out / request.name
    own = find_table(request.name)
    table = own.with_seeds(_seeds(own.sweep.seeds, request.seeds, folder))
    wanted = selected(table.sweep, request.cells, request.seeds or own.sweep.seeds)
    outcome = sweep(SweepRequest(sweep=wanted, store=SharedFolder(folder), jobs=request.jobs), display)
    with turn_at(request.out / PAGE):  # another process may do other cells, or another table
        results = results_in(folder, table)
        if results.records:
            write_results(results, folder)
        _write(folder / TABLE, yaml.safe_dump(dict(table.document), sort_keys=False))
        _write(folder / PAGE, section(table, results, made_with()))
        sections = [_text(path) for path in sorted(request.out.glob(f"*/{PAGE}"))]
        _write(request.out / PAGE, "\n".join([INTRODUCTION.format(tally=tally(sections)), *sections]))
    return replace(outcome, results=results)


def results_in(folder: Path, table: PublishedTable) -> SweepResults:
    """Return the results of the completed runs in a folder. Cells and seeds without a completed run are left out."""
    records = records_of(folder, table.sweep)
    done = table.sweep.only(run for run in table.sweep.runs if (run.place, run.seed) in records)
    return SweepResults(sweep=done, records=records)


def table_in(folder: Path) -> PublishedTable:
    """Return the published table to which the runs in a folder belong. Raises ExperimentError if the folder has no
    valid table.
    """
    table = load_table(folder / TABLE)
    return replace(table, name=table.sweep.runs[0].experiment.name)


def made_with() -> Mapping[str, str]:
    """Return the versions of Fedstrata and its libraries, and the processor. If Fedstrata runs from a checkout, also
    return its commit.
    """
    said = {name: installed(name) for name in ("fedstrata", "torch", "numpy")}
    where = {"commit": commit()} if commit() else {}
    cores = f"{processor()} ({os.cpu_count()} cores)"
    return {**said, **where, "Python": platform.python_version(), "processor": cores}


def _seeds(own: Sequence[int], asked: Sequence[int], folder: Path) -> list[int]:
    """Return the seeds in the table's file (`own`) and in the request (`asked`), and the seeds of runs in the folder.
    Each seed is returned once.
    """
    found = {int(match[1]) for path in folder.glob("runs/**/seed-*") if (match := SEED.fullmatch(path.name))}
    return list(dict.fromkeys([*own, *asked, *sorted(found)]))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"cannot read {path}: {error}; remove the file") from None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
