"""The folder that a run writes to: a new one, or that of a run that is to go on."""

import json
from pathlib import Path

from fedstrata.errors import OutputError
from fedstrata.experiment import Experiment, load_experiment


def check_unused(folder: Path) -> None:
    """Raise an OutputError unless the folder is empty or not there yet."""
    try:
        if folder.is_dir():
            if any(folder.iterdir()):
                raise OutputError(f"{folder} exists and is not empty; choose another folder, or remove it")
        elif folder.exists() or folder.is_symlink():
            raise OutputError(f"{folder} exists and is not a folder; choose another")
    except OSError as error:
        raise _unusable(folder, error) from None


def prepare_folder(folder: Path, experiment: Experiment) -> None:
    """Make the folder, with the resolved experiment in it.

    Raises:
        OutputError: it cannot be written, or another run has taken it in the meantime.
    """
    try:
        for part in (folder, folder / "logs", folder / "state"):
            part.mkdir(parents=True, exist_ok=True)
        with (folder / "experiment.yaml").open("x", encoding="utf-8") as file:
            file.write(experiment.to_yaml())
    except OSError as error:
        raise _unusable(folder, error) from None


def resume_folder(folder: Path) -> Experiment:
    """The experiment of a run that was interrupted or failed, its folder made ready to go on in.

    Faults are left out: they belong to the run's first life. The record of a failed end is removed, so that the GPS
    tries again from its state.

    Raises:
        OutputError: the folder is not a run's. ExperimentError: its experiment file was altered.
    """
    try:
        if not (folder / "state").is_dir():
            raise OutputError(f"{folder} has no state/ to go on from; start a run with --out")
        experiment = load_experiment(folder / "experiment.yaml", ["faults=[]"])
        summary = folder / "state" / "gps" / experiment.run_id / "record" / "summary.json"
        if summary.exists() and json.loads(summary.read_text(encoding="utf-8")).get("status") == "failed":
            summary.unlink()
    except OSError as error:
        raise _unusable(folder, error) from None
    return experiment


def _unusable(folder: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write to {folder}: {error.strerror}; choose another folder")
