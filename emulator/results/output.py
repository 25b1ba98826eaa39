"""Prepare the folder to which a run writes: a new folder, or the folder of a run that continues."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO

from fedstrata.errors import DataError, ExperimentError, OutputError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import load_experiment
from fedstrata.process.private_files import make_private
from fedstrata.record.summary import read_summary
from fedstrata.store import claimed
from fedstrata.store.own_code import check_files


def check_current_folder() -> None:
    """Raise OutputError if the current folder has been deleted. A run, and the libraries that it uses, need a current
    folder.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        raise OutputError("the current folder has been deleted; change to another folder, for instance by cd") from None


def check_unused(folder: Path, besides: Collection[str] = ()) -> None:
    """Check that a folder is empty, except for files with the names in `besides`, or does not exist. Raises OutputError
    otherwise.
    """
    try:
        if folder.is_dir():
            if any(path.name not in besides for path in folder.iterdir()):
                raise OutputError(f"{folder} exists and is not empty; choose another folder, or remove it")
        elif folder.exists() or folder.is_symlink():
            raise OutputError(f"{folder} exists and is not a folder; choose another")
    except OSError as error:
        raise _unusable(folder, error) from None


def new_folder(folder: Path, besides: Collection[str] = ()) -> None:
    """Make a folder, or use it if it exists and is empty, except for files with the names in `besides`. Raises
    OutputError if the folder cannot be made, or is not empty.
    """
    check_unused(folder, besides)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from None


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Make a file, and yield it for writing. If the block or the last write fails, remove the file.

    Raises:
        OSError: the file exists, or cannot be written.
    """
    with path.open("xb") as file:
        try:
            yield file
            file.flush()
        except BaseException:  # such as a full disk or Ctrl-C
            path.unlink()
            raise


def unused_folder(parent: Path, name: str) -> Path:
    """Return the first path among `parent/name`, `parent/name-2`, `parent/name-3` and so on that does not exist."""
    candidates = (parent / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in candidates if not os.path.lexists(folder))


def prepare_folder(folder: Path, experiment: Experiment) -> None:
    """Make the folder, and write the experiment with all defaults into it.

    Raises:
        OutputError: the folder cannot be written, or another run has taken it in the meantime.
    """
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        make_private(folder / "state")
        with new_file(folder / "experiment.yaml") as file:
            file.write(experiment.to_yaml().encode())
    except OSError as error:
        raise _unusable(folder, error) from None


@contextmanager
def run_folder(folder: Path, experiment: Experiment | None) -> Iterator[Experiment]:
    """Prepare a run's folder, and yield the run's experiment. If `experiment` is None, the run in the folder continues,
    and its experiment is yielded. During the block, the folder is reserved for this process.

    Raises:
        OutputError, ExperimentError: the errors of `prepare_folder` and `resume_folder`.
        StateError: another process uses the folder.
    """
    if experiment is not None:
        prepare_folder(folder, experiment)
    elif not (folder / "state").is_dir():
        raise OutputError(f"{folder} has no state/ to continue from; start a run with --out")
    with claimed(folder / "state"):
        yield experiment or resume_folder(folder)


def resume_folder(folder: Path) -> Experiment:
    """Return the experiment of an interrupted or failed run, and prepare the run's folder for the continuation.

    Faults are removed from the experiment, because they belong to the first start of the run. The record of a failed
    run is removed, so that the GPS continues the run from its state.

    Raises:
        OutputError: the folder cannot be written.
        ExperimentError: the experiment file in the folder was altered.
    """
    try:
        experiment = load_experiment(folder / "experiment.yaml", ["faults=[]"])
        _check_unaltered(folder, experiment)
        check_files(experiment)
        summary = folder / "state" / "gps" / experiment.run_id / "record" / "summary.json"
        if summary.exists() and not _is_completed(summary):
            summary.unlink()
        (folder / "logs").mkdir(exist_ok=True)  # the user may have removed it
    except OSError as error:
        raise _unusable(folder, error) from None
    return experiment


def _check_unaltered(folder: Path, experiment: Experiment) -> None:
    """Check that the state in the folder belongs to the run of `experiment`, which was read from the same folder.
    Raises ExperimentError if the state is of another run.
    """
    runs = sorted(path.name for path in (folder / "state" / "gps").glob("*") if path.is_dir())
    if runs and experiment.run_id not in runs:
        raise ExperimentError(
            f"{folder / 'experiment.yaml'} was altered: it describes run {experiment.run_id}, but state/ is of "
            f"{runs[0]}; put the file back, or begin a new run with --out"
        )


def _is_completed(summary: Path) -> bool:
    """Return whether the run was completed according to the summary of its record. If the summary is damaged, return
    False, so that the record is made again.
    """
    try:
        return read_summary(summary).status == "completed"
    except DataError:
        return False


def _unusable(folder: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write to {folder}: {error.strerror}; choose another folder")
