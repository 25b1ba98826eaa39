"""Manage the folder of a sweep: find which runs are finished, which can continue, and which must begin again."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import IO

import yaml

from emulator.results.output import check_unused
from emulator.results.read_record import RunRecord, load_record
from emulator.runs.incoming import ASIDE
from emulator.sweeps.claims import claimed, is_locked, opened
from emulator.sweeps.file import Place, Sweep
from fedstrata.errors import DataError, ExperimentError, OutputError
from fedstrata.experiment import Experiment
from fedstrata.experiment.yaml_files import read_yaml
from fedstrata.experiment_file import load_experiment
from fedstrata.store.own_code import changed_code

SWEEP = "sweep.yaml"
TUNING = "tuning"  # the folder of the runs that choose values, in a sweep's folder
OF_A_RUN = {"experiment.yaml", "logs", "state", ASIDE}  # the content of a run's folder before the record


class FolderState(Enum):
    """Name the possible states of a run's folder when a sweep starts."""

    NEW = "nothing, or an incomplete folder, which is removed"
    HALF = "a state to continue from"
    DONE = "a complete record"


def check_folder(out: Path) -> None:
    """Check that a folder is empty or belongs to a sweep. Raises OutputError if it has other content."""
    try:
        check_unused(out)
    except OutputError:
        # another process of this sweep may just have made the file, or an interrupted sweep has only tuned
        if not any((place / SWEEP).exists() for place in (out, out / TUNING)):
            raise


@contextmanager
def joined(out: Path, sweep: Sweep) -> Iterator[None]:
    """Use the sweep's folder during the block, together with other processes of the same sweep.

    The sweep's file is written to the folder. While any process uses the folder, no process can replace this file.

    Raises:
        OutputError: another sweep uses the folder, or the sweep's file cannot be written or locked.
    """
    with opened(out / SWEEP) as file:
        if is_locked(file, fcntl.LOCK_EX | fcntl.LOCK_NB) and (content := _content(file)) != sweep.text:
            if not (_is_written(content) or claimed(out)):
                raise OutputError(f"{file.name} is written by hand, and would be lost; choose another folder")
            try:
                file.truncate(0)
                file.write(sweep.text)
                file.flush()
            except OSError as error:
                raise OutputError(f"cannot write {file.name}: {error.strerror}; free space") from None
        is_locked(file, fcntl.LOCK_SH)
        if _content(file) != sweep.text:
            raise OutputError(f"a sweep with another file is using {out}; wait for its end, or choose another folder")
        yield


def _content(file: IO[str]) -> str:
    file.seek(0)
    try:
        return file.read()
    except UnicodeDecodeError:
        raise OutputError(f"{file.name} is not a sweep file; remove it, or choose another folder") from None


def _is_written(content: str) -> bool:
    """Return whether the content of a sweep file was written by a sweep, or is empty. If the user has written or
    changed the content, return False.
    """
    try:
        return not content or yaml.safe_dump(read_yaml(content), sort_keys=False) == content
    except ValueError:
        return False


def state_of(folder: Path, experiment: Experiment) -> FolderState:
    """Return the state of a run's folder. `experiment` is the experiment of the run.

    Raises:
        OutputError: the folder has a run of another experiment, or other content.
    """
    there = _experiment_in(folder)
    if there is None:
        strange = [path for path in folder.glob("*") if path.name not in OF_A_RUN]
        if strange:
            raise OutputError(
                f"{strange[0]} does not belong to a run of this sweep; remove it, or choose another folder"
            )
        return FolderState.NEW
    changed, is_done = changed_code(there, experiment), completed_record(folder) is not None
    if changed is None:
        raise OutputError(
            f"{folder} holds a run of another experiment, {there.run_id}; remove it, or choose another folder"
        )
    if changed and is_done:
        raise OutputError(
            f"{', '.join(changed)} changed after the run in {folder}; restore the old text, remove this folder, or "
            "choose another --out"
        )
    if changed:
        return FolderState.NEW
    if is_done:
        return FolderState.DONE
    return FolderState.HALF if (folder / "state").is_dir() else FolderState.NEW


def completed_record(folder: Path) -> RunRecord | None:
    """Return the record in a run's folder. If the run is not completed, return None."""
    try:
        record = load_record(folder)
    except DataError:
        return None
    return record if record.summary.status == "completed" else None


def is_drawn(folder: Path) -> bool:
    """Return whether the report in a run's folder is about the present record, and not about an earlier record."""
    try:
        return (folder / "report.html").stat().st_mtime_ns >= (folder / "summary.json").stat().st_mtime_ns
    except OSError:
        return False


def clear(folder: Path) -> None:
    """Delete the files of a run that has no result yet. Raises OutputError if they cannot be deleted."""
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise OutputError(f"cannot remove {folder}: {error.strerror}") from None


def records_of(out: Path, sweep: Sweep) -> dict[tuple[Place, int], RunRecord]:
    """Return the records of the sweep's completed runs. The key of a record is the run's row in the sweep's table (a
    `Place`), and the run's seed.
    """
    found = ((run, completed_record(out / run.path)) for run in sweep.runs)
    return {(run.place, run.seed): record for run, record in found if record is not None}


def _experiment_in(folder: Path) -> Experiment | None:
    """Return the experiment in a run's folder. If the experiment's file is missing or incomplete, return None."""
    path = folder / "experiment.yaml"
    try:
        return load_experiment(path) if path.exists() else None
    except ExperimentError:
        return None
