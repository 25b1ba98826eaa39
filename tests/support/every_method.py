"""One small experiment that every method can run, with options that make each do what it is for."""

import json
from typing import Any

from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment

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
    "fedclust": {"clusters": 2},
    "fedfomo": {"offered": 2, "explore": 0.5},
    "fedtsdp": {
        "batch": 20,
        "hopkins": 0.01,
        "hopkins_points": 4,
        "divergence": 0.0008,
        "distance": 0.12,
        "shrink": 0.7,
    },
    "flux": {"clusters": 2, "sketch": 8},
    "ifca": {"clusters": 2},
    "label_means": {"clusters": 2, "sketch": 8},
    "one_shot": {"clusters": 2},
    "pacfl": {"clusters": 2},
    "random": {"clusters": 2},
    "user_centric": {"streams": 2, "batches": 2},
}


MODELS = {"fedbn": "{name: 'tests.support.normed:Normed'}"}  # of methods that are for certain models only


def experiment_of(method: str) -> Experiment:
    chosen = json.dumps({"name": method, **OPTIONS.get(method, {})})
    model = [f"model={MODELS[method]}"] if method in MODELS else []
    return parse_experiment(EXPERIMENT, overrides=[f"method={chosen}", *model])
