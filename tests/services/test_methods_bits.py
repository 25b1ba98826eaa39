"""Every method: the same models and accuracies whatever the processes of its devices, and whoever comes first."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tiers import Tiers

from fedstrata.experiment import Experiment, parse_experiment
from fedstrata.methods.registry import NAMES

EXPERIMENT = """
name: bits
seed: 3
partition:
  kind: tasks
  minority_ratio: 0.1
  public: {examples: 60, labelled: true}
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 3, examples_per_device: 60}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 2, examples_per_device: 50}
model: {name: mlp, hidden: [16]}
training:
  global_rounds: 3
  lps_rounds_per_global_round: 1
  batch_size: 16
  optimiser: {learning_rate: 0.1, momentum: 0.5}
"""
# such that five devices on three rounds are grouped, and grouped anew, where a method does that
OPTIONS: dict[str, dict[str, Any]] = {
    "adaptive": {"clusters": 2},
    "cfl": {"first_round": 2, "mean_ratio": 1.0},
    "fedfomo": {"offered": 2, "explore": 0.5},
    "fedtsdp": {
        "batch": 20,
        "hopkins": 0.01,
        "hopkins_points": 4,
        "divergence": 0.0008,
        "distance": 0.12,
        "shrink": 0.7,
    },
    "ifca": {"clusters": 2},
    "one_shot": {"clusters": 2},
    "pacfl": {"clusters": 2},
    "random": {"clusters": 2},
    "user_centric": {"streams": 2, "batches": 2},
}
ORDERS = ([[4, 3, 2, 1, 0]], [[3, 0], [4, 2, 1]], [[2], [4], [0], [3], [1]])  # one, two and five processes
KEPT = ("clusters", "model_sha256", "personal_sha256", "device_accuracy", "received_accuracy", "adjusted_rand_index")


def experiment_of(method: str) -> Experiment:
    chosen = json.dumps({"name": method, **OPTIONS.get(method, {})})
    return parse_experiment(EXPERIMENT, overrides=[f"method={chosen}"])


async def _summary(experiment: Experiment, folder: Path, processes: list[list[int]]) -> dict[str, Any]:
    """What a run comes to whose devices are started in this order, in so many processes' parts."""
    async with Tiers(experiment, folder) as tiers:
        hosts = [await tiers.host() for _ in processes]  # each stacks the training of its own devices only
        for host, indexes in zip(hosts, processes, strict=True):
            for index in indexes:
                tiers.start_device(host, index)
        record = await tiers.ended()
    summary = json.loads((record.folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "completed", summary["reason"]
    return {key: summary[key] for key in KEPT}


@pytest.mark.parametrize("method", NAMES)
def test_one_two_and_five_processes_give_the_same_bits(method: str, tmp_path: Path) -> None:
    experiment = experiment_of(method)
    one, *others = (
        asyncio.run(_summary(experiment, tmp_path / str(len(processes)), processes)) for processes in ORDERS
    )
    assert one["model_sha256"]
    assert len(one["clusters"]) > 1 or method not in OPTIONS
    for other in others:
        assert other == one
