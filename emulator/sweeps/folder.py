"""The folder of a sweep: which runs are finished, which continue, and which begin again."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import IO

from emulator.results.output import check_unused
from emulator.results.record import RunRecord, load_record
from emulator.sweeps.file import Place, Sweep
from fedstrata.errors import DataError, ExperimentError, OutputError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import load_experiment

SWEEP = "sweep.yaml"
OF_A_RUN = {"experiment.yaml", "logs", "state"}  # what there is of a run before its record


class RoundStart(Enum):
    """Name the possible states of a run's folder."""

    NEW = "nothing, or the beginning of a folder, which is removed"
    HALF = "a state to go on from"
    DONE = "a complete record"


@contextmanager
def held(out: Path) -> Iterator[IO[str]]:
    """Yield the sweep's file in its folder. A missing folder is made, and no other sweep can use it during the block.

    If no run has begun, the folder is removed afterwards.

    Raises:
        OutputError: the folder has other content, another process uses it, or it cannot be written.
    """
    if not (out / SWEEP).exists():
        check_unused(out)
    with _locked(out) as file:
        try:
            yield file
        finally:
            if not file.tell():
                (out / SWEEP).unlink()
                with suppress(OSError):  # it is not empty
                    out.rmdir()


def write_sweep(file: IO[str], sweep: Sweep) -> None:
    """Write a sweep to its file."""
    file.truncate(0)
    file.write(sweep.text)
    file.flush()


def _locked(out: Path) -> IO[str]:
    """Return the sweep's file in its folder, open for writing and locked until it is closed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / SWEEP).open("a", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror}; choose another folder") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise OutputError(f"another sweep is at work in {out}; wait for its end, or choose another folder") from None
    return file


def standing(folder: Path, experiment: Experiment) -> RoundStart:
    """Return the state of the folder of an experiment's run.

    Raises:
        OutputError: the folder has a run of another experiment, or other content.
    """
    there = _experiment_in(folder)
    if there is None:
        strange = [path for path in folder.glob("*") if path.name not in OF_A_RUN]
        if strange:
            raise OutputError(f"{strange[0]} is not of a run of this sweep; remove it, or choose another folder")
        return RoundStart.NEW
    if there.digest != experiment.digest:
        raise OutputError(
            f"{folder} holds a run of another experiment, {there.run_id}; remove it, or choose another folder"
        )
    if completed_record(folder) is not None:
        return RoundStart.DONE
    return RoundStart.HALF if (folder / "state").is_dir() else RoundStart.NEW


def completed_record(folder: Path) -> RunRecord | None:
    """Return the record of a completed run; None for any other run."""
    try:
        record = load_record(folder)
    except DataError:
        return None
    return record if record.summary.status == "completed" else None


def clear(folder: Path) -> None:
    """Delete the files of a run that has no result yet. Raises OutputError if they cannot be deleted."""
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise OutputError(f"cannot remove {folder}: {error.strerror}") from None


def records_of(out: Path, sweep: Sweep) -> dict[tuple[Place, int], RunRecord]:
    """Return the records of the sweep's completed runs, by cell and setting, and by seed."""
    found = ((run, completed_record(out / run.path)) for run in sweep.runs)
    return {(run.place, run.seed): record for run, record in found if record is not None}


def _experiment_in(folder: Path) -> Experiment | None:
    """Return the experiment in a run's folder; None if its file is missing or incomplete."""
    path = folder / "experiment.yaml"
    try:
        return load_experiment(path) if path.exists() else None
    except ExperimentError:
        return None
