"""Measure how long this machine takes to train a device's model per example. The result is for the key
`compute.per_example`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from device.training import TrainingJob, limit_threads, train
from fedstrata.datasets import Dataset, dataset_info, load_dataset
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.methods import make_method
from fedstrata.models import build_model
from fedstrata.partitions import device_data
from fedstrata.partitions.local_data import ON_BOARDS
from fedstrata.processors import started
from fedstrata.tasks import make_task


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Hold a measurement of training: the seconds per example in each measured round."""

    seconds: tuple[float, ...]
    examples: int  # examples used in a round

    @property
    def per_example_ns(self) -> int:
        """Nanoseconds per example: the median over the measured rounds. Other work of the machine hardly changes a
        median.
        """
        return round(median(self.seconds) * 1e9)


def data_here(experiment: Experiment) -> Dataset:
    """Return the experiment's data. Raises FedstrataError if they are not on this machine."""
    if experiment.partition.is_local:
        raise ExperimentError(ON_BOARDS)
    return load_dataset(experiment.data, experiment.seed)


def training_job(experiment: Experiment, dataset: Dataset, device_index: int) -> TrainingJob:
    """Return the training job of a device in its first LPS round. The job trains the model of the experiment's section
    `model`, from its initial weights. The call also limits torch to one thread, as in a device process.

    Raises:
        FedstrataError: there is no such device, or its model is not available.
    """
    limit_threads()
    processor = started(experiment)
    model = build_model(experiment.model, dataset_info(experiment.data)).of_run(experiment.seed, processor)
    return TrainingJob(
        model=model,
        start=make_method(experiment).initial(model, 0),
        examples=device_data(experiment, dataset, device_index).train,
        training=experiment.training,
        seed=experiment.seed,
        device_index=device_index,
        lps_round=0,
        global_round=0,
        task=make_task(experiment),
    )


def measured_pace(job: TrainingJob, rounds: int, clock: Callable[[], float] = time.perf_counter) -> Pace:
    """Train one LPS round to warm up, then `rounds` measured LPS rounds. Return the pace of the measured rounds."""
    seconds = []
    for number in range(rounds + 1):
        began = clock()
        train(replace(job, lps_round=number))
        seconds.append((clock() - began) / job.trained_examples)
    return Pace(seconds=tuple(seconds[1:]), examples=job.trained_examples)
