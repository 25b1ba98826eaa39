"""A network with batch normalisation and dropout, by AdamW with kept state, against plain PyTorch and under kills."""

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from device.training import DROPOUT
from fedstrata.datasets import load_dataset
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.partitions import DeviceData, device_data
from tests.support.normed import Normed
from tests.support.records import summary_of
from tests.support.spanning_runs import disturbed
from tests.support.tiers import Tiers, run_in_process

DEVICES, ROUNDS, EPOCHS, BATCH = 5, 3, 2, 16
RATE, CLIP = 0.01, 1.0
TEXT = f"""
name: normed
seed: 5
partition: {{kind: iid, devices: {DEVICES}, examples_per_device: 40}}
model: {{name: "tests.support.normed:Normed"}}
method: fedavg
training:
  global_rounds: {ROUNDS}
  lps_rounds_per_global_round: 1
  local_epochs: {EPOCHS}
  batch_size: {BATCH}
  optimiser: {{name: adamw, learning_rate: {RATE}, clip_norm: {CLIP}, state: kept, schedule: {{name: cosine}}}}
"""
KEPT = ("model_sha256", "personal_sha256", "device_accuracy")


@cache
def experiment(*overrides: str) -> Experiment:
    return parse_experiment(TEXT, overrides=overrides)


@cache
def data_of(index: int) -> DeviceData:
    return device_data(experiment(), load_dataset(experiment().data, 0), index)


def kept_of(summary: dict[str, Any]) -> dict[str, Any]:
    assert summary["status"] == "completed", summary["reason"]
    return {key: summary[key] for key in KEPT}


class PlainDevice:
    """A device of the plain loop: torch's own AdamW, which lives through all rounds."""

    def __init__(self, index: int) -> None:
        self.index, self.module = index, Normed()
        self.adamw = torch.optim.AdamW(self.module.parameters(), RATE)
        self.data = data_of(index).train

    def train(self, received: dict[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
        self.module.load_state_dict(received, strict=False)
        self.module.train()
        self.adamw.param_groups[0]["lr"] = RATE * (1 + np.cos(np.pi * number / ROUNDS)) / 2
        orders = np.random.default_rng([5, self.index, number])
        seeds = np.random.default_rng([5, self.index, number, DROPOUT])
        for order in (orders.permutation(len(self.data)) for _ in range(EPOCHS)):
            for batch in (order[start : start + BATCH] for start in range(0, len(order), BATCH)):
                torch.manual_seed(int(seeds.integers(1 << 63)))
                self.adamw.zero_grad()
                outputs = self.module(torch.tensor(self.data.inputs[batch]))
                cross_entropy(outputs, torch.tensor(self.data.labels[batch])).backward()
                torch.nn.utils.clip_grad_norm_(self.module.parameters(), CLIP)
                self.adamw.step()
        return travelling(self.module)


def travelling(module: Normed) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items() if value.is_floating_point()}


def averaged() -> dict[str, torch.Tensor]:
    """The final model of FedAvg over devices with as many examples each, statistics included."""
    torch.manual_seed(5)
    model = travelling(Normed())
    devices = [PlainDevice(index) for index in range(DEVICES)]
    for number in range(ROUNDS):
        trained = [device.train(model, number) for device in devices]
        model = {name: torch.stack([each[name] for each in trained]).double().mean(0).float() for name in model}
    return model


@pytest.fixture(scope="module")
def calm(folder: Path) -> Path:
    return run_in_process(experiment(), folder / "calm").folder


def test_fedavg_of_a_normed_network_by_adamw_is_a_plain_pytorch_loop(calm: Path) -> None:
    found, expected = load_file(calm / "models" / "lps-0.safetensors"), averaged()
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert np.abs(found[name] - tensor.numpy()).max() < 1e-6, name


async def _by_processes(folder: Path, processes: list[list[int]]) -> dict[str, Any]:
    async with Tiers(experiment(), folder) as tiers:
        hosts = [await tiers.host() for _ in processes]
        for host, indexes in zip(hosts, processes, strict=True):
            for index in indexes:
                tiers.start_device(host, index)
        record = await tiers.ended()
    return kept_of(summary_of(record.folder))


@pytest.mark.parametrize("processes", [[[4, 3, 2, 1, 0]], [[3, 0], [4, 2, 1]], [[2], [4], [0], [3], [1]]])
def test_one_two_and_five_processes_give_the_same_bits(processes: list[list[int]], calm: Path, tmp_path: Path) -> None:
    assert asyncio.run(_by_processes(tmp_path, processes)) == kept_of(summary_of(calm))


@pytest.mark.kills
def test_killed_processes_change_no_bit(calm: Path, tmp_path: Path) -> None:
    kills = [
        {"do": "kill", "process": "device-001", "at": {"point": "upload", "round": 1}},
        {"do": "kill", "process": "lps-0", "at": {"point": "aggregation", "round": 1}},
        {"do": "kill", "process": "device-003", "at": {"point": "upload", "round": 2}},
    ]
    killed = disturbed(tmp_path / "killed", experiment().to_yaml().replace("faults: []\n", ""), kills, processes=2)
    assert len(killed["restarts"]) == 3
    assert kept_of(killed) == kept_of(summary_of(calm))
    assert killed["lost_state"] == []


def test_masked_updates_of_statistics_add_up_to_the_same_bits(calm: Path, tmp_path: Path) -> None:
    masked = run_in_process(experiment("secure_aggregation={min_devices: 3}"), tmp_path / "masked").folder
    assert summary_of(masked)["model_sha256"] == summary_of(calm)["model_sha256"]


# --- statistics and layers that stay ------------------------------------------------------------------------------


@cache
def plainly(stay: tuple[str, ...], tunes: bool = False) -> list[dict[str, torch.Tensor]]:
    """The final model of each device by plain SGD when some tensors stay on their device."""
    torch.manual_seed(5)
    models = [travelling(Normed(rate=0.0)) for _ in range(1)] * DEVICES
    for number in range(ROUNDS):
        trained = [plain_sgd(index, models[index], [number]) for index in range(DEVICES)]
        mean = {name: torch.stack([each[name] for each in trained]).double().mean(0).float() for name in models[0]}
        models = [{name: (each if name in stay else mean)[name] for name in mean} for each in trained]
    if tunes:
        models = [plain_sgd(index, models[index], [ROUNDS, 1]) for index in range(DEVICES)]
    return models


def plain_sgd(index: int, received: dict[str, torch.Tensor], address: list[int]) -> dict[str, torch.Tensor]:
    module = Normed(rate=0.0)
    module.load_state_dict(received, strict=False)
    sgd, data = torch.optim.SGD(module.parameters(), 0.1), data_of(index).train
    order = np.random.default_rng([5, index, *address]).permutation(len(data))
    for batch in (order[start : start + BATCH] for start in range(0, len(order), BATCH)):
        sgd.zero_grad()
        cross_entropy(module(torch.tensor(data.inputs[batch])), torch.tensor(data.labels[batch])).backward()
        sgd.step()
    return travelling(module)


def accuracies(models: list[dict[str, torch.Tensor]]) -> dict[str, float]:
    found = {}
    for index, weights in enumerate(models):
        module, held_out = Normed(rate=0.0).eval(), data_of(index).test
        module.load_state_dict(weights, strict=False)
        hits = module(torch.tensor(held_out.inputs)).argmax(1).numpy() == held_out.labels
        found[f"device-{index:03d}"] = float(hits.mean())
    return found


SGD = ("model.options={rate: 0.0}", "training.local_epochs=1", "training.optimiser={learning_rate: 0.1}")
STATISTICS = ("norm.running_mean", "norm.running_var")
NORMS = ("norm.weight", "norm.bias", *STATISTICS)


@pytest.mark.parametrize(
    ("overrides", "stay"),
    [(("model.buffers=device",), STATISTICS), (("method=fedbn",), NORMS)],
    ids=["statistics", "fedbn"],
)
def test_what_stays_on_devices_is_as_in_a_plain_pytorch_loop(
    overrides: tuple[str, ...], stay: tuple[str, ...], tmp_path: Path
) -> None:
    folder = run_in_process(experiment(*SGD, *overrides), tmp_path / "run").folder
    models = plainly(stay)
    (file,) = (folder / "models").glob("*.safetensors")
    found = load_file(file)
    assert set(found) == set(models[0]) - set(stay)
    for name, values in found.items():
        assert np.abs(values - models[0][name].numpy()).max() < 1e-6, name
    assert summary_of(folder)["device_accuracy"] == pytest.approx(accuracies(models), abs=1e-12)


def test_fine_tuning_is_measured_and_thrown_away(tmp_path: Path) -> None:
    folder = run_in_process(experiment(*SGD, "method=fedavg_ft"), tmp_path / "run").folder
    models = plainly(())
    (file,) = (folder / "models").glob("*.safetensors")
    for name, values in load_file(file).items():
        assert np.abs(values - models[0][name].numpy()).max() < 1e-6, name
    tuned = summary_of(folder)
    assert tuned["device_accuracy"] == pytest.approx(accuracies(plainly((), tunes=True)), abs=1e-12)
    received = list(accuracies(models).values())
    assert tuned["received_accuracy"]["mean"] == pytest.approx(sum(received) / DEVICES, abs=1e-9)
    assert tuned["accuracy"] != tuned["received_accuracy"]["mean"]


# --- frozen layers ------------------------------------------------------------------------------------------------


def test_only_what_trains_goes_over_the_wire(tmp_path: Path) -> None:
    """Of 600 kB a model, the last layer's 2000 · 10 weights and 10 biases travel: 80,040 bytes a device and round."""
    torch.manual_seed(1)
    frozen = {name: value for name, value in Normed(width=2000).state_dict().items() if not name.startswith("last")}
    save_file(frozen, tmp_path / "frozen.safetensors")
    changes = ("options={width: 2000}", "freeze=[first, norm]", f"weights={tmp_path}/frozen.safetensors")
    folder = run_in_process(experiment(*(f"model.{change}" for change in changes)), tmp_path / "run").folder
    summary = summary_of(folder)
    (file,) = (folder / "models").glob("*.safetensors")
    assert {name: array.shape for name, array in load_file(file).items()} == {
        "last.weight": (10, 2000),
        "last.bias": (10,),
    }
    payload = DEVICES * ROUNDS * 80_040
    assert payload < summary["bytes_by_kind"]["device-lps"]["update"]["up"] < 1.01 * payload
