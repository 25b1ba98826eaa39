"""Check all runs of a sweep before the first run starts: data, partition, model and deadline."""

from collections.abc import Sequence

from emulator.estimates.check import check_fit
from emulator.sweeps.file import Place, SweepRun
from fedstrata.datasets import dataset_info, load_dataset
from fedstrata.datasets.examples import Dataset
from fedstrata.errors import FedstrataError
from fedstrata.experiment import DataSettings, Experiment
from fedstrata.methods import make_method
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


def _check_data(experiment: Experiment, datasets: dict[DataSettings, Dataset]) -> None:
    """Check that the data can be divided among the devices, and that models and deadlines fit them."""
    if experiment.partition.is_local:
        return
    data = experiment.data.drawn(experiment.seed)
    if data not in datasets:
        datasets[data] = load_dataset(data, experiment.seed)
    check_fit(experiment, datasets[data])


def _check_model(experiment: Experiment) -> None:
    from fedstrata.models import build_model

    streams_of(experiment, make_method(experiment), build_model(experiment.model, dataset_info(experiment.data)))
