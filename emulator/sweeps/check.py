"""What a sweep is refused for before anything starts: data, partitions and models that some run could not use."""

from collections.abc import Sequence

from emulator.sweeps.file import Place, SweepRun
from fedstrata.datasets import dataset_info, load_dataset
from fedstrata.datasets.examples import Dataset
from fedstrata.errors import FedstrataError
from fedstrata.experiment import DataSettings, Experiment, LocalPartition
from fedstrata.methods import make_method
from fedstrata.partitions import check_partition
from fedstrata.streams.streams import streams_of


def check_runs(runs: Sequence[SweepRun]) -> None:
    """Try the data, partition and model of every run.

    Raises:
        FedstrataError: the first that is refused, with its cell and seed.
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
    """Partition the data, which is loaded once for all runs."""
    if isinstance(experiment.partition, LocalPartition):
        return
    if experiment.data not in datasets:
        datasets[experiment.data] = load_dataset(experiment.data)
    check_partition(experiment, datasets[experiment.data])


def _check_model(experiment: Experiment) -> None:
    from fedstrata.models import build_model

    streams_of(experiment, make_method(experiment), build_model(experiment.model, dataset_info(experiment.data)))
