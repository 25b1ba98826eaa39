"""The folder that a run writes to: never one that holds something already."""

from pathlib import Path

from fedstrata.errors import OutputError
from fedstrata.experiment import Experiment


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


def _unusable(folder: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write to {folder}: {error.strerror}; choose another folder")
