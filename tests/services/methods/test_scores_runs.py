"""Scores in place of weights on the three tiers: the same bits whatever the processes, LPSs, arrivals and kills."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedstrata.experiment_file import parse_experiment
from tests.support.records import summary_of
from tests.support.spanning_runs import KILLS, disturbed, left_alone
from tests.support.tiers import run_in_process

# Five devices with other labels and three models, two of which change in the midst of the run.
TEXT = """
name: scores
partition:
  kind: groups
  groups:
    - {name: low, devices: 2, examples_per_device: 50, labels: [0, 1, 2]}
    - {name: middle, devices: 2, examples_per_device: 60, labels: [2, 3]}
    - {name: high, devices: 1, examples_per_device: 40, labels: [4, 5]}
  public: {examples: 90, labels: [0, 1, 2, 3, 4, 5], source: test, labelled: true, tests: true}
model: {name: mlp, hidden: [16]}
architectures:
  - {devices: [1, 2], model: {name: convnet, channels: [4, 6]}}
  - {devices: [0, 2], from_global_round: 3, model: {name: mlp, hidden: [8, 6]}}
method: {name: scores, reading: READING, examples_a_label: 10, least_share: 0.5}
topology: {lps: LPS}
training: {global_rounds: 5, lps_rounds_per_global_round: 1, batch_size: 8}
"""
SAME = ("model_sha256", "personal_sha256", "device_accuracy")


def text_of(*, lps: int = 1, reading: str = "rows") -> str:
    return TEXT.replace("LPS", str(lps)).replace("READING", reading)


@pytest.mark.runs
@pytest.mark.parametrize("reading", ["rows", "columns"])
def test_two_device_processes_and_three_lpss_give_the_same_table_as_one(tmp_path: Path, reading: str) -> None:
    two = disturbed(tmp_path / "by-2", text_of(reading=reading), [], processes=2)
    one, spanning = (left_alone(tmp_path / f"lps-{lps}", text_of(lps=lps, reading=reading)) for lps in (1, 3))
    assert [one[key] for key in SAME] == [two[key] for key in SAME]
    assert spanning["model_sha256"] == two["model_sha256"]
    assert two["excluded"] == []
    assert len(set(two["personal_sha256"].values())) == 5
    tensors = load_file(tmp_path / "by-2" / "models" / "cluster-0.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == {"table": (90, 10), "weights": (10,)}
    assert np.flatnonzero(tensors["weights"]).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("reading", ["alone", "labels"])
def test_where_nothing_is_exchanged_nothing_travels(tmp_path: Path, reading: str) -> None:
    record = run_in_process(parse_experiment(text_of(reading=reading)), tmp_path / "run")
    assert record.summary.status == "completed"
    assert load_file(record.folder / "models" / "cluster-0.safetensors") == {}
    assert len(set(summary_of(record.folder)["personal_sha256"].values())) == 5


@pytest.mark.kills
def test_a_gps_an_lps_and_devices_killed_as_models_change_change_no_bit(tmp_path: Path) -> None:
    faults = [*KILLS, {"do": "kill", "process": "device-000", "at": {"point": "upload", "round": 3}}]
    undisturbed = left_alone(tmp_path / "undisturbed", text_of(lps=3))
    killed = disturbed(tmp_path / "killed", text_of(lps=3), faults, processes=2)
    assert len(killed["restarts"]) == 4
    for key in SAME:
        assert killed[key] == undisturbed[key]
    assert killed.get("lost_state", []) == []
