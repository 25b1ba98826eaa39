"""Before a sweep's Job is made, check that pods have the files and the memory that the runs need."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from emulator.cluster.chart_values import CODE_BYTES_MAX
from emulator.estimates.sizing import LPS_PROCESS_BYTES, MIB, device_memory, lps_memory
from emulator.shipped.data import dataset_here
from emulator.sweep_jobs.objects import JobRequest
from emulator.sweeps.check_runs import check_runs
from emulator.sweeps.file import Sweep, SweepRun
from fedstrata.datasets import Dataset
from fedstrata.errors import DataError, ExperimentError, PluginError
from fedstrata.experiment.keys_of_files import FILE_KEYS
from fedstrata.experiment.sections import PLUGIN
from fedstrata.methods import make_method
from fedstrata.streams.homes import lps_known

# Keys of files, at the end of a key of the sweep file. In an axis, a number follows.
FILE = re.compile(rf"\.({'|'.join(FILE_KEYS).replace('.', '[.]').replace('*', '[^.]+')})([.]\d+)?$")
MOST_LPS = 16  # a guess if the method decides the number in the run
GPS_BYTES, COMMAND_BYTES = 200 * MIB, 320 * MIB  # measured memory of a GPS, and of `fedstrata sweep`


def check(sweep: Sweep, files: Mapping[str, str], request: JobRequest) -> None:
    """Check that pods can do all runs of a sweep.

    Raises:
        ExperimentError: a run needs files that only this machine has, or more memory than a pod has. Or the files for
            the pods are too large for a ConfigMap.
        FedstrataError: a run's experiment does not fit its data. The message has the cell and seed.
    """
    size = sum(len(text.encode()) for text in files.values())
    if size > CODE_BYTES_MAX:
        raise ExperimentError(
            f"the sweep's file and code have {size:,} bytes, but a ConfigMap holds {CODE_BYTES_MAX:,}; put code into "
            "an image (--image), or split the sweep"
        )
    _check_text(sweep)
    modules = None if request.image else {Path(name).stem for name in files}
    places = {run.place: run for run in sweep.runs}
    for run in places.values():
        _check_files(run, modules)
        _check_memory(run, request, dataset_here(run.experiment))
    # Without its data set, a run cannot be checked here, but pods may have the data set.
    check_runs([run for run in sweep.runs if dataset_here(run.experiment) is not None])


def _check_text(sweep: Sweep) -> None:
    """Check that the sweep file refers to no file of this machine, because pods do not have this file. Raises
    ExperimentError if it does.
    """
    for key, text in _texts(yaml.safe_load(sweep.text)):
        if FILE.search(key):
            raise ExperimentError(
                f"pods cannot read files of this machine: {key[1:]} is {text}; write the samples of a trace into the "
                "sweep file, and leave out model.weights and partition.file"
            )


def _check_files(run: SweepRun, modules: set[str] | None) -> None:
    """Check that a run needs no file of this machine. Raises ExperimentError if it does. `modules` are the modules of
    the user's own code that pods get. If it is None, any module is allowed, because the user's image may have it.
    """
    experiment = run.experiment
    if experiment.partition.is_local:
        raise ExperimentError(f"{run.label}: partition.kind local is for boards; pods have no data of their own")
    if experiment.data.folder is not None:
        raise ExperimentError(
            f"{run.label}: pods cannot read data.folder {experiment.data.folder} of this machine; put published data "
            "sets into the folder data/ of the claim, or set data.download: true"
        )
    for _, text in _texts(experiment.model_dump(mode="json")):
        if modules is not None and PLUGIN.match(text) and text.partition(":")[0].partition(".")[0] not in modules:
            raise ExperimentError(
                f"{run.label}: pods do not have the module of {text}; send its file with --code, or give an image that "
                "has it with --image"
            )


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts in a document, each with its key, such as `.base.data.name`."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping | list | tuple):
        for name, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _texts(each, f"{key}.{name}")


def _check_memory(run: SweepRun, request: JobRequest, dataset: Dataset | None) -> None:
    """Check that a pod has the memory for the devices and servers of a run. Raises ExperimentError if it has not."""
    experiment = run.experiment
    try:
        of_devices, of_lps = device_memory(experiment, dataset), lps_memory(experiment)
    except (PluginError, DataError):  # pods may have the code or data that is missing here
        return
    lps_count = lps_known(experiment, make_method(experiment)) or min(MOST_LPS, experiment.device_count)
    needed = COMMAND_BYTES + GPS_BYTES + lps_count * (LPS_PROCESS_BYTES + of_lps)
    more_processes = min(request.cores, experiment.device_count) - 1
    needed += more_processes * of_devices.process + of_devices.of(experiment.device_count)
    if needed > request.memory_mib * MIB:
        raise ExperimentError(
            f"{run.label}: {experiment.device_count:,} devices with their servers need {-(-needed // MIB):,} MiB, but "
            f"a pod has {request.memory_mib:,}; raise --memory, or use fedstrata up"
        )
