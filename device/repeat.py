"""A test whether a training can be repeated: two steps of a device, done twice and compared bit by bit."""

from dataclasses import replace

import numpy as np

from device.pace import training_job
from device.training import TrainingJob, train
from fedstrata.errors import PluginError
from fedstrata.experiment import Experiment
from fedstrata.tensors import Flat

STEPS = 2


def train_twice(experiment: Experiment) -> None:
    """Train two steps of the first device twice, with separately made models, and with another training in between.

    Raises:
        PluginError: the results differ; the message names the tensors.
    """
    first = _trained(experiment)
    _trained(experiment, lps_round=1)
    again = _trained(experiment)
    layout = training_job(experiment, 0).model.layout
    pairs = zip(layout.views(first).items(), layout.views(again).values(), strict=True)
    different = {
        name: float(np.abs(one - other).max()) for (name, one), other in pairs if one.tobytes() != other.tobytes()
    }
    if different:
        names, largest = ", ".join(different), max(different.values())
        raise PluginError(
            f"model {experiment.model.name} does not train the same twice: after {STEPS} steps {names} differ by up to "
            f"{largest:.2g}; draw from torch's global generator alone, and keep nothing between calls but buffers"
        )


def _trained(experiment: Experiment, lps_round: int = 0) -> Flat:
    job: TrainingJob = training_job(experiment, 0)
    training = job.training.model_copy(update={"local_steps": STEPS, "local_epochs": None})
    return train(replace(job, training=training, lps_round=lps_round)).weights
