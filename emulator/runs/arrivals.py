"""Repeat the asynchronous rounds of an earlier run."""

import shutil
from pathlib import Path

from emulator.local.processes import ARRIVALS
from emulator.results.read_record import load_record
from fedstrata.clock.clocks import check_repeatable
from fedstrata.errors import ExperimentError, OutputError
from fedstrata.experiment import Experiment


def check_arrivals(record: Path, experiment: Experiment) -> None:
    """Check that an experiment can repeat the rounds of a record.

    Raises:
        DataError: the record cannot be read.
        ExperimentError: the record belongs to another experiment, or its rounds cannot be repeated.
    """
    summary = load_record(record).summary
    check_repeatable(experiment)
    if summary.run_id != experiment.run_id:
        raise ExperimentError(
            f"{record} is a run {summary.run_id}, and not {experiment.run_id}; run {record / 'experiment.yaml'}"
        )
    if summary.status != "completed" or summary.excluded:
        why = "has not completed" if summary.status != "completed" else f"has excluded {summary.excluded[0].device}"
        raise ExperimentError(f"the run in {record} {why}, so its rounds cannot be repeated; give another record")


def keep_arrivals(record: Path, folder: Path) -> None:
    """Copy the rounds of a record into the folder of the run that repeats them."""
    try:
        shutil.copyfile(record / "contributions.csv", folder / ARRIVALS)
    except OSError as error:
        raise OutputError(f"cannot copy contributions.csv of {record} to {folder}: {error.strerror}") from None
