"""The work of all programs: the examples of an experiment's devices, as files that can be read without Fedstrata."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedstrata.datasets import load_dataset
from fedstrata.experiment_file import load_experiment
from fedstrata.partitions import device_data


def write_work(experiment_file: Path, folder: Path, settings: Sequence[str] = ()) -> Path:
    """Write inputs.npy (devices, examples, width) and labels.npy, int64 (devices, examples, …), into a new folder."""
    experiment = load_experiment(experiment_file, settings)
    dataset = load_dataset(experiment.data, experiment.seed)
    inputs, labels = [], []
    for index in range(experiment.device_count):
        data = device_data(experiment, dataset, index).train
        examples = data.take(np.arange(len(data)))
        inputs.append(examples.inputs.reshape(len(data), -1))
        labels.append(np.asarray(examples.targets, np.int64))
    folder.mkdir()
    np.save(folder / "inputs.npy", np.stack(inputs))
    np.save(folder / "labels.npy", np.stack(labels))
    return folder
