"""The devices that a process hosts. The devices are given by index or by name, or follow from the number of the
process's pod.
"""

import os
import re

from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment


def device_indexes(experiment: Experiment, devices: str | None, name: str | None) -> list[int]:
    """Return the indexes of the devices that this process hosts, in order. They come from `devices`, such as `0-4,7`,
    or from `name`, or otherwise from the pod's number.

    Raises:
        ExperimentError: no devices are given, or one of them does not exist in the experiment.
    """
    if devices:
        indexes = parse_indexes(devices)
    elif name:
        indexes = [_index_of(experiment, name)]
    else:
        indexes = _of_pod(os.environ.get("FEDSTRATA_POD_NAME", ""), os.environ.get("FEDSTRATA_DEVICES_PER_POD", "1"))
        indexes = [index for index in indexes if index < experiment.device_count]
    if not indexes or max(indexes) >= experiment.device_count:
        raise ExperimentError(
            f"--devices {devices or indexes}: the experiment has devices 0 to {experiment.device_count - 1}"
        )
    return indexes


def parse_indexes(text: str) -> list[int]:
    """Return the indexes in a text, for instance [0, 1, 2, 3, 7] for `0-3,7`. Raises ExperimentError if the text has
    another form.
    """
    indexes: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if not match:
            raise ExperimentError(f"--devices takes indexes such as 0-3,7, not {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        indexes.update(range(first, last + 1))
    return sorted(indexes)


def _index_of(experiment: Experiment, name: str) -> int:
    ids = experiment.device_ids()
    if name not in ids:
        raise ExperimentError(f"--device-name: no device is called {name!r}; the experiment has {', '.join(ids[:5])} …")
    return ids.index(name)


def _of_pod(pod_name: str, per_pod: str) -> list[int]:
    ordinal = re.search(r"-(\d+)$", pod_name)
    if not ordinal or not per_pod.isdecimal() or int(per_pod) < 1:
        raise ExperimentError(
            "give --devices or --device-name, or set FEDSTRATA_POD_NAME and FEDSTRATA_DEVICES_PER_POD"
        )
    first = int(ordinal[1]) * int(per_pod)
    return list(range(first, first + int(per_pod)))
