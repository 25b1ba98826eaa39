"""Count the labels of devices for the report. The counts are computed from the experiment, if its data set is on this
machine.

The services never see labels, but this machine can compute the partition again. A record may come from a stranger, so
code that it names is not imported. Data are not downloaded, and are searched only in the usual folders.
"""

from collections.abc import Mapping
from functools import lru_cache
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.console.units import counted
from emulator.results.read_record import RunRecord
from fedstrata.datasets import Dataset, load_dataset
from fedstrata.datasets.loading import BUILT_IN
from fedstrata.errors import FedstrataError
from fedstrata.experiment import DataSettings, Experiment
from fedstrata.methods.registry import method_settings
from fedstrata.partitions import device_data, label_drift
from fedstrata.partitions.registry import REGISTRY, partition_settings

Counts = NDArray[np.int64]
MOST_ROWS = 200  # with more devices, a row is a cluster, not a device
MOST_DEVICES = 10_000
SHOWN = 0.01  # smaller distances from label shares are not shown
LEFTOVERS = 0.2  # a device that is so much farther from its label shares than the median device has what others left


def label_picture(record: RunRecord) -> dict[str, Any] | None:
    """Return the numbers of training examples by label, with one row per device, ordered by cluster. With over 200
    devices, there is one row per cluster.

    Return None if the data set is missing, if the data set or the partition is not one of Fedstrata's, if the
    experiment is unreadable, or if there are over 10,000 devices.
    """
    try:
        experiment = _dividing(record.experiment)
        counts = None if experiment is None else label_counts(experiment)
    except (FedstrataError, ValueError):
        return None
    if experiment is None or counts is None:
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
        "said": drift_said(experiment, _data_set(experiment)),
        "labels": counts.shape[1],
        "rows": [{"name": name, "cluster": cluster, "counts": row.tolist()} for name, cluster, row in rows],
    }


def _dividing(document: Mapping[str, Any]) -> Experiment | None:
    """Return an experiment that divides its data among devices like the experiment in `document`. It has only the
    sections that decide this, so code that other sections name is not imported. If the partition is the user's own
    code, return None.

    Raises:
        FedstrataError: the partition is not valid.
        ValidationError: the seed or the data are not valid.
    """
    partition = document.get("partition")
    if not isinstance(partition, Mapping) or str(partition.get("kind")) not in REGISTRY:
        return None
    decide = {key: document[key] for key in ("seed", "data") if key in document}
    return Experiment(**decide, name="labels", method=method_settings(None), partition=partition_settings(partition))


def label_counts(experiment: Experiment) -> Counts | None:
    """Return the number of training examples of each device with each label, shape (devices, labels). If the data set
    is not one of Fedstrata's, or if there are too many devices, return None.

    Raises:
        FedstrataError: the data is not in a usual folder, or does not fit the partition.
    """
    if experiment.data.name not in BUILT_IN or experiment.device_count > MOST_DEVICES:
        return None
    return counts_of(experiment, _data_set(experiment))


def counts_of(experiment: Experiment, dataset: Dataset) -> Counts:
    """Return the number of training examples of each device with each label, shape (devices, labels). Raises the errors
    of `device_data`.
    """
    owned = (device_data(experiment, dataset, index).train.labels for index in range(experiment.device_count))
    return np.stack([np.bincount(labels, minlength=dataset.info.num_classes) for labels in owned])


def drift_said(experiment: Experiment, dataset: Dataset) -> str:
    """Return a text about the distance between the label shares of devices and the label shares that the partition
    wants. If all devices have the wanted shares, or if the partition wants none, return an empty text.
    """
    drift = label_drift(experiment, dataset)
    if max(drift, default=0.0) < SHOWN:
        return ""
    typical, last = median(drift), fmean(drift[-max(1, len(drift) // 10) :])
    said = f"{typical:.2f} from the wanted ones for the median device (total variation), {last:.2f} for the last tenth"
    far = [name for name, each in zip(experiment.device_ids(), drift, strict=True) if each > typical + LEFTOVERS]
    if not far:
        return said
    return f"{said}; from {far[0]} on, {counted(len(far), 'device')} got what others left: lower examples_per_device"


def _data_set(experiment: Experiment) -> Dataset:
    data = experiment.data.drawn(experiment.seed)
    return _loaded(data.model_copy(update={"folder": None, "download": False}))


@lru_cache(maxsize=1)
def _loaded(data: DataSettings) -> Dataset:
    return load_dataset(data, 0)  # the seed 0 is not used: data that are drawn have their own seed
