"""Tensors that are not the model's travel and add up as its weights do: on one LPS or three, mixed or not."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedstrata.datasets import load_dataset
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.partitions import device_data
from tests.support.spanning_runs import ended, started, text_of, weights_sha256
from tests.support.tiers import run_in_process

# Two tables beside the model: one moves by the mean of differences, by examples; one is mixed, by the plan's shares.
OWN = """
from dataclasses import replace

import numpy as np

from fedstrata.methods import Channel, Method, Plan, Reach, all_layers
from fedstrata.tensors import Layout


class Histograms(Method):
    mixes = True

    def channels(self, model):
        table = lambda name: Channel(name=name, tensors=Layout.of({name: (10,)}), reach=Reach.EVERYWHERE)
        return (*all_layers(model, Reach.EVERYWHERE), table("moved"), table("mixed"))

    def plan(self, moment, answers, before):
        devices = [device.device_index for device in answers.devices]
        return Plan(clusters=(tuple(devices),), rule="one", weights={"mixed": ({d: d / 8 for d in devices},)})

    async def local(self, work):
        outcome = await super().local(work)
        own = np.bincount(work.examples.labels, minlength=10) / len(work.examples)
        return replace(outcome, tables={name: (own + table) / 2 for name, table in work.tables.items()})


class Alone(Histograms):
    mixes = False

    def channels(self, model):
        return super().channels(model)[:2]

    def plan(self, moment, answers, before):
        return replace(super().plan(moment, answers, before), weights={})
"""


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "histograms.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def plainly(experiment: Experiment, shares: list[int]) -> Any:
    """A table after all rounds, by the formula: half of it and half of the mean of what devices have."""
    dataset = load_dataset(experiment.data, experiment.seed)
    labels = [device_data(experiment, dataset, index).train.labels for index in range(experiment.device_count)]
    own = [np.bincount(found, minlength=10) / len(found) for found in labels]
    table = np.zeros(10)
    for _ in range(experiment.training.global_rounds):
        table = np.average([(each + table) / 2 for each in own], axis=0, weights=shares)
    return table


@pytest.mark.runs
def test_tables_are_means_by_examples_or_by_shares_whatever_the_lpss_and_processes(own_code: Path) -> None:
    text = text_of("histograms:Histograms", lps=1)
    with ExitStack() as stack:
        ended(started(stack, own_code / "by-2", text, processes=2, PYTHONPATH=str(own_code)))
    three = run_in_process(parse_experiment(text_of("histograms:Histograms", lps=3)), own_code / "lps-3")
    assert weights_sha256(three.folder) == weights_sha256(own_code / "by-2")
    found = load_file(own_code / "by-2" / "models" / "cluster-0.safetensors")
    assert np.abs(found["moved"] - plainly(parse_experiment(text), [60, 60, 60, 50, 50])).max() < 1e-6
    assert np.abs(found["mixed"] - plainly(parse_experiment(text), [0, 1, 2, 3, 4])).max() < 1e-6


def test_where_one_lps_has_all_devices_a_table_travels_by_it_as_what_all_share(own_code: Path) -> None:
    text = text_of("histograms:Alone", lps=1).replace("topology: {lps: 1}\n", "")
    record = run_in_process(parse_experiment(text), own_code / "alone")
    assert record.summary.status == "completed"
    found = load_file(record.folder / "models" / "lps-0.safetensors")
    assert set(found) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "moved"}
    assert np.abs(found["moved"] - plainly(parse_experiment(text), [60, 60, 60, 50, 50])).max() < 1e-6
