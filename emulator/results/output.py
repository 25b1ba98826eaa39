"""The folder to which a run writes: a new folder, or the folder of a run that continues."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from fedstrata.errors import DataError, ExperimentError, OutputError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import load_experiment
from fedstrata.process.private_files import make_private
from fedstrata.record.summary import read_summary
from fedstrata.store import claimed


def check_unused(folder: Path) -> None:
    """Raise OutputError unless the folder is empty or missing."""
    try:
        if folder.is_dir():
            if any(folder.iterdir()):
                raise OutputError(f"{folder} exists and is not empty; choose another folder, or remove it")
        elif folder.exists() or folder.is_symlink():
            raise OutputError(f"{folder} exists and is not a folder; choose another")
    except OSError as error:
        raise _unusable(folder, error) from None


def new_folder(folder: Path) -> None:
    """Make a folder, or use an empty one. Raises OutputError if it cannot be made, or has content."""
    check_unused(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from None


def unused_folder(parent: Path, name: str) -> Path:
    """Return `parent/name` if it does not exist, otherwise the first name of `parent/name-2`, `parent/name-3` and so on
    that does not exist.
    """
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
        with (folder / "experiment.yaml").open("x", encoding="utf-8") as file:
            file.write(experiment.to_yaml())
    except OSError as error:
        raise _unusable(folder, error) from None


@contextmanager
def run_folder(folder: Path, experiment: Experiment | None) -> Iterator[Experiment]:
    """Yield an experiment, after its folder is prepared. For None, yield the experiment of the run that continues in
    the folder. No other process may use the folder during the block.

    Raises:
        OutputError, ExperimentError: as `prepare_folder` and `resume_folder` do; StateError: another has the folder.
    """
    if experiment is not None:
        prepare_folder(folder, experiment)
    elif not (folder / "state").is_dir():
        raise OutputError(f"{folder} has no state/ to go on from; start a run with --out")
    with claimed(folder / "state"):
        yield experiment or resume_folder(folder)


def resume_folder(folder: Path) -> Experiment:
    """Return the experiment of an interrupted or failed run, and prepare its folder for the continuation.

    The experiment has no faults, because they belong to the first start of the run. The record of a failed run is
    removed, so that the GPS tries again from its state.

    Raises:
        OutputError: the folder cannot be written. ExperimentError: its experiment file was altered.
    """
    try:
        experiment = load_experiment(folder / "experiment.yaml", ["faults=[]"])
        _check_unaltered(folder, experiment)
        summary = folder / "state" / "gps" / experiment.run_id / "record" / "summary.json"
        if summary.exists() and not _is_completed(summary):
            summary.unlink()
    except OSError as error:
        raise _unusable(folder, error) from None
    return experiment


def _check_unaltered(folder: Path, experiment: Experiment) -> None:
    """Raise ExperimentError if the folder's state is not of the run that its experiment file describes."""
    runs = sorted(path.name for path in (folder / "state" / "gps").glob("*") if path.is_dir())
    if runs and experiment.run_id not in runs:
        raise ExperimentError(
            f"{folder / 'experiment.yaml'} was altered: it describes run {experiment.run_id}, and state/ is of "
            f"{runs[0]}; put the file back, or begin a run of its own with --out"
        )


def _is_completed(summary: Path) -> bool:
    """Return whether a record says that its run was completed. If the record is damaged, return False, so that it is
    made again.
    """
    try:
        return read_summary(summary).status == "completed"
    except DataError:
        return False


def _unusable(folder: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write to {folder}: {error.strerror}; choose another folder")
