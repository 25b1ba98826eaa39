"""Test an experiment before its run. Its models and its task must work. If the run has a batch with a single example,
training on such a batch must work, too. The same training steps, done twice, must give the same result. Then measure
the pace of training.
"""

from dataclasses import replace

import numpy as np

from device.pace import Pace, measured_pace, training_job
from device.training import TrainingJob, train
from device.trial import try_all
from fedstrata.datasets import Dataset, load_dataset
from fedstrata.errors import PluginError
from fedstrata.experiment import Experiment
from fedstrata.methods import make_method
from fedstrata.partitions import example_counts
from fedstrata.processors import processor_of
from fedstrata.streams.architectures import Architectures
from fedstrata.tasks import make_task
from fedstrata.tensors import Flat

STEPS = 2


def try_experiment(experiment: Experiment, dataset: Dataset) -> None:
    """Check models and task as a device does. If any batch of the run has a single example, train on such a batch. Then
    train the first two local steps twice, and compare the results.

    Raises:
        FedstrataError: a model or the task is not usable, or the second training gives another result.
    """
    training_job(experiment, dataset, 0)  # limits threads
    training = experiment.training
    architectures = Architectures(experiment, make_method(experiment), processor_of(experiment))
    try_all(experiment, architectures, dataset, make_task(experiment))
    counts = example_counts(experiment, dataset)
    ends = [training.epoch_examples(n) - (training.batches(n) - 1) * training.batch_size for n in counts]
    if 1 in ends and training.batch_size > 1:  # sizes of the last batches of an epoch
        job = training_job(experiment, dataset, ends.index(1))
        if job.steps >= training.batches(len(job.examples)):
            train(replace(job, epochs=1))
    train_twice(experiment, dataset)


def pace_here(experiment: Experiment, dataset: Dataset) -> Pace:
    """Measure the pace of the device with the most examples, for three LPS rounds. Raises FedstrataError like
    `training_job`.
    """
    counts = example_counts(experiment, dataset)
    return measured_pace(training_job(experiment, dataset, counts.index(max(counts))), rounds=3)


def train_twice(experiment: Experiment, dataset: Dataset) -> None:
    """Train two local steps of the first device twice: with these data, and with the data loaded again. Each training
    has a new copy of the model. In between, train two steps of another round, which must not change the result.

    Raises:
        PluginError: the results differ. The message names the tensors, or says that the data differ.
    """
    job, anew = training_job(experiment, dataset, 0), load_dataset(experiment.data, experiment.seed)
    first = _trained(experiment, dataset)
    _trained(experiment, dataset, lps_round=1)
    again = _trained(experiment, anew)
    pairs = zip(job.model.layout.views(first).items(), job.model.layout.views(again).values(), strict=True)
    different = {
        name: float(np.abs(one - other).max()) for (name, one), other in pairs if one.tobytes() != other.tobytes()
    }
    if different:
        one, other, targets = job.examples, training_job(experiment, anew, 0).examples, job.task.targets
        if not (np.array_equal(one.inputs, other.inputs) and np.array_equal(targets(one), targets(other))):
            raise PluginError(
                f"data set {experiment.data.name} has other examples when it is loaded again; draw with a fixed seed, "
                "such as numpy.random.default_rng(1)"
            )
        names, largest = ", ".join(different), max(different.values())
        raise PluginError(
            f"model {experiment.model.name} does not train the same twice: after {STEPS} steps {names} differ by up to "
            f"{largest:.2g}; draw only from torch's global generator, and keep nothing but buffers between calls"
        )


def _trained(experiment: Experiment, dataset: Dataset, lps_round: int = 0) -> Flat:
    job: TrainingJob = training_job(experiment, dataset, 0)
    training = job.training.model_copy(update={"local_steps": STEPS, "local_epochs": None})
    return train(replace(job, training=training, lps_round=lps_round)).weights
