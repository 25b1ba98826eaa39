"""A device's work without tiers around it, for tests of what methods do at a device."""

from typing import Any

from device.compute_thread import ComputeThread
from device.training import OneByOne
from device.work import Beginning, DeviceProcess, DeviceWork
from fedstrata.datasets import load_dataset
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Method, make_method
from fedstrata.models import build_model
from fedstrata.partitions import device_data
from fedstrata.rounds.child.models_and_updates import PLAIN
from fedstrata.streams.architectures import Architectures
from fedstrata.tasks import make_task

ON_DIGITS = """
name: tried
seed: 3
data: {name: digits}
partition: {kind: iid, devices: 4, examples_per_device: 37}
model: {name: mlp, hidden: [6]}
training: {global_rounds: 2, lps_rounds_per_global_round: 1, batch_size: 10}
"""


def on_digits(method: str, *overrides: str) -> Experiment:
    """An experiment with this method, of four devices with 37 examples each."""
    return parse_experiment(ON_DIGITS, overrides=(f"method={method}", *overrides))


class Devices:
    """The devices of an experiment, in one process."""

    def __init__(self, experiment: Experiment) -> None:
        dataset = load_dataset(experiment.data, experiment.seed)
        self.experiment = experiment
        self.method: Method = make_method(experiment)
        self.model = build_model(experiment.model, dataset.info)
        self.dataset = dataset
        self.host = DeviceProcess(
            experiment=experiment,
            dataset=dataset,
            architectures=Architectures(experiment, self.method),
            method=self.method,
            compute_thread=ComputeThread(OneByOne()),
            channels=None,  # type: ignore[arg-type]  # nothing is sent
            task=make_task(experiment),
            metrics=None,  # type: ignore[arg-type]
            shield_of=lambda device_id: PLAIN,
            process_id="",
            pod_name="",
        )

    def held_out(self, device_index: int) -> Any:
        """The examples that a device measures on."""
        return device_data(self.experiment, self.dataset, device_index).test

    def work(self, device_index: int, lps_round: int = -1, **begins: Any) -> DeviceWork:
        """A device's work in an LPS round, or before training."""
        data = device_data(self.experiment, self.dataset, device_index)
        return DeviceWork(self.host, data, device_index, begins=Beginning(lps_round=lps_round, **begins))
