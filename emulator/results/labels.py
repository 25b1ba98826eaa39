"""Count the labels of devices for the report. The counts are computed from the experiment, if its data set is on this
machine.

The services never see labels, but this machine can compute the partition again. Code that the record names is not
executed. Data are not downloaded, and are searched only in the usual folders.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.results.record import RunRecord
from fedstrata.datasets import Dataset, dataset_info, load_dataset
from fedstrata.datasets.loading import BUILT_IN
from fedstrata.errors import FedstrataError
from fedstrata.experiment import DataSettings, Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.partitions import device_data

Counts = NDArray[np.int64]
MOST_ROWS = 200  # with more devices, a row is a cluster, not a device
MOST_DEVICES = 10_000


def label_picture(record: RunRecord) -> dict[str, Any] | None:
    """Return the number of training examples with each label. There is one row per device, in the order of clusters. If
    there are many devices, there is one row per cluster.

    If the data set is missing or is not one of Fedstrata's, if the experiment cannot be read, or if there are too many
    devices, return None.
    """
    try:
        experiment = parse_experiment(record.experiment_yaml)
        counts = label_counts(experiment)
    except FedstrataError:
        return None
    if counts is None:
        return None
    places = {device: place for place, device in enumerate(experiment.device_ids())}
    clusters = {
        name: [places[device] for device in ids if device in places] for name, ids in record.summary.clusters.items()
    }
    if experiment.device_count > MOST_ROWS:
        rows = [(name, name, counts[members].sum(axis=0)) for name, members in clusters.items()]
    else:
        ids = experiment.device_ids()
        rows = [(ids[place], name, counts[place]) for name, members in clusters.items() for place in members]
    if not rows:
        return None
    return {
        "labels": counts.shape[1],
        "rows": [{"name": name, "cluster": cluster, "counts": row.tolist()} for name, cluster, row in rows],
    }


def label_counts(experiment: Experiment) -> Counts | None:
    """Return the number of training examples of each device with each label, shape (devices, labels). If the data set
    is not one of Fedstrata's, or if there are too many devices, return None.

    Raises:
        FedstrataError: the data is not in a usual folder, or does not fit the partition.
    """
    data = experiment.data.drawn(experiment.seed)
    if data.name not in BUILT_IN or experiment.device_count > MOST_DEVICES:
        return None
    dataset = _loaded(data.model_copy(update={"folder": None, "download": False}))
    classes = dataset_info(data).num_classes
    return np.stack(
        [
            np.bincount(device_data(experiment, dataset, index).train.labels, minlength=classes)
            for index in range(experiment.device_count)
        ]
    )


@lru_cache(maxsize=1)
def _loaded(data: DataSettings) -> Dataset:
    return load_dataset(data, 0)  # the seed 0 is not used: data that are drawn have their own seed
