"""Check all runs of a sweep before the first run starts: data, partition, model and deadline."""

from collections.abc import Sequence

from emulator.estimates.check import check_fit
from emulator.estimates.device_processes import processes_beside
from emulator.estimates.sizing import lacking_room
from emulator.sweeps.file import Place, SweepRun
from fedstrata.datasets import dataset_info, load_dataset
from fedstrata.datasets.examples import Dataset
from fedstrata.errors import ExperimentError, FedstrataError
from fedstrata.experiment import DataSettings, Experiment
from fedstrata.methods import make_method
from fedstrata.processors import memory_here
from fedstrata.streams.streams import streams_of


def check_runs(runs: Sequence[SweepRun]) -> None:
    """Check the data, partition, model and deadlines of every run.

    Raises:
        FedstrataError: a run is not possible. The message has the cell and seed of the first such run.
    """
    datasets: dict[DataSettings, Dataset] = {}
    tried: set[Place] = set()
    for run in runs:
        try:
            _check_data(run.experiment, datasets)
            if run.place not in tried:  # no model depends on the seed
                _check_model(run.experiment)
                tried.add(run.place)
        except FedstrataError as error:
            raise type(error)(f"{run.label}: {error}") from None


def check_room(runs: Sequence[SweepRun], jobs: int) -> None:
    """Check that this machine's processor has the memory for `jobs` runs at the same time. Raises ExperimentError if
    the memory is too small. The message has the cell and seed of the first run that lacks memory.
    """
    datasets: dict[DataSettings, Dataset] = {}
    for run in runs:
        experiment = run.experiment
        if experiment.partition.is_local or memory_here(experiment) is None:
            continue
        dataset = _drawn(experiment, datasets)
        if said := lacking_room(experiment, dataset, processes_beside(experiment, jobs), jobs):
            raise ExperimentError(f"{run.label}: {said}")


def _check_data(experiment: Experiment, datasets: dict[DataSettings, Dataset]) -> None:
    """Check that the data can be divided among the devices, and that models and deadlines fit them."""
    if experiment.partition.is_local:
        return
    check_fit(experiment, _drawn(experiment, datasets))


def _drawn(experiment: Experiment, datasets: dict[DataSettings, Dataset]) -> Dataset:
    """Return the experiment's data. `datasets` keeps them for further runs."""
    data = experiment.data.drawn(experiment.seed)
    if data not in datasets:
        datasets[data] = load_dataset(data, experiment.seed)
    return datasets[data]


def _check_model(experiment: Experiment) -> None:
    from fedstrata.models import build_model

    streams_of(experiment, make_method(experiment), build_model(experiment.model, dataset_info(experiment.data)))
