"""Memory of a process with devices, by their number and the model: a pod with this many devices needs as much.

    python -m benchmarks.memory_devices --model cnn --shape 1 28 28 --devices 1 10 25

Runs each number in one process for two global rounds. The examples have no content, and are as many as in the published
data set of that shape. Prints the peak resident size of that process (VmHWM), and the memory that
`emulator.estimates.sizing` calculates for it.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.suite.observed import peaks_of_run
from benchmarks.suite.programs import python
from emulator.estimates.sizing import PUBLISHED, device_memory
from fedstrata.datasets import Dataset, Examples, load_dataset
from fedstrata.experiment import Experiment
from fedstrata.experiment.sections import DataSettings
from fedstrata.experiment_file import parse_experiment

CLASSES, TEST_SHARE = 10, 0.2
LIKE: Mapping[tuple[int, ...], str] = {(1, 8, 8): "digits", (1, 28, 28): "fashion-mnist", (3, 32, 32): "cifar-10"}


def load(settings: DataSettings) -> Dataset:
    """Return the data set of the runs. All its bytes are equal."""
    shape = settings.input_shape or ()
    number = PUBLISHED[LIKE[shape]]
    test = round(number * TEST_SHARE)
    train, test_set = (
        Examples(inputs=np.full((size, *shape), 7, np.uint8), labels=np.arange(size) % CLASSES)
        for size in (number - test, test)
    )
    return Dataset(train=train, test=test_set, num_classes=CLASSES)


def experiment_of(options: argparse.Namespace, devices: int, data: str) -> Experiment:
    """Return an experiment with this many devices, and with two short global rounds."""
    return parse_experiment(f"""
name: memory
data: {data}
partition: {{kind: iid, devices: {devices}, examples_per_device: {options.examples}, test_share: {TEST_SHARE}}}
model: {{name: {options.model}}}
method: {options.method}
training: {{global_rounds: 2, lps_rounds_per_global_round: 1, local_epochs: 1, batch_size: {options.batch},
           optimiser: {options.optimiser}}}
""")


def peak_mb(experiment: Experiment, folder: Path) -> float:
    """Return the peak size of the process with all devices, until it has evaluated the final model."""
    path = folder / "memory.yaml"
    path.write_text(experiment.to_yaml(), encoding="utf-8")
    command = python("-m", "emulator", "run", str(path), "--out", str(folder / "run"), "--device-processes", "1")
    return peaks_of_run(command, timeout_s=600, log=folder / "errors.log")["device"]


def main() -> None:
    """Print a line for each number of devices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--shape", type=int, nargs="+", default=[1, 28, 28])
    parser.add_argument("--examples", type=int, default=600, help="examples of each device")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--optimiser", default="{name: sgd}", help="as in an experiment file")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 10, 25])
    options = parser.parse_args()
    for devices in options.devices:
        own = f'{{name: "benchmarks.memory_devices:load", input_shape: {options.shape}, num_classes: {CLASSES}}}'
        experiment = experiment_of(options, devices, own)
        with tempfile.TemporaryDirectory() as folder:
            peak = peak_mb(experiment, Path(folder)) * 1e6 / 2**20
        asked = device_memory(experiment, load_dataset(experiment.data, experiment.seed)).of(devices) / 2**20
        print(f"{options.model}, {devices} devices in a process: {peak:.0f} MiB; asked for {asked:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
