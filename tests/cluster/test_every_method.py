"""Every method on Kubernetes, with a laptop's bits; and scores with a model of its own in each of three pods.

Twenty minutes: by hand, `python -m pytest tests/cluster/test_every_method.py -m cluster`, with the images loaded.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedstrata.methods.registry import NAMES
from tests.cluster.conftest import Lab, run_here
from tests.support.every_method import MODELS, experiment_of
from tests.support.records import assert_same_result, summary_of

ALONE: dict[str, Any] = {"device": {"devicesPerPod": 1}}
PACKED: dict[str, Any] = {"device": {"devicesPerPod": 3}}
SCORES = """
name: three-models
seed: 3
partition:
  kind: groups
  groups:
    - {name: low, devices: 1, examples_per_device: 60, labels: [0, 1]}
    - {name: middle, devices: 1, examples_per_device: 60, labels: [1, 2]}
    - {name: high, devices: 1, examples_per_device: 60, labels: [2, 3]}
  public: {examples: 80, labels: [0, 1, 2, 3], source: test, labelled: true, tests: true}
model: {name: mlp, hidden: [16]}
architectures:
  - {devices: [1], model: {name: convnet, channels: [4, 6]}}
  - {devices: [2], model: {name: mlp, hidden: [8, 6]}}
  - {devices: [0], from_global_round: 3, model: {name: convnet, channels: [6]}}
method: {name: scores, measure: table}
training: {global_rounds: 5, lps_rounds_per_global_round: 1, batch_size: 8}
"""


def there_and_here(lab: Lab, text: str, name: str, pods: dict[str, Any]) -> tuple[Path, Path]:
    """The records of an experiment in pods and on this machine."""
    experiment = lab.folder / f"{name}.yaml"
    experiment.write_text(text, encoding="utf-8")
    here, there = run_here(lab.folder / f"{name}-here", experiment=experiment), lab.folder / f"{name}-there"
    lab.up(experiment, pods, release=name)
    lab.here("collect", "--out", str(there), "--quiet", release=name)
    return there, here


@pytest.mark.parametrize("method", [name for name in NAMES if name not in MODELS])  # those are in test_own_code.py
def test_a_method_has_the_bits_of_a_laptop(lab: Lab, method: str) -> None:
    release = method.replace("_", "-")
    there, here = there_and_here(lab, experiment_of(method).to_yaml(), release, PACKED)
    assert_same_result(there, here)
    lab.here("down", release=release)


def test_three_models_in_three_pods_exchange_scores(lab: Lab) -> None:
    there, here = there_and_here(lab, SCORES, "scores-alone", ALONE)
    assert_same_result(there, here)
    assert len(lab.pods("device", "scores-alone")) == 3
    assert len(set(summary_of(there)["personal_sha256"].values())) == 3
    assert yaml.safe_load((there / "experiment.yaml").read_text())["architectures"] != []
    lab.here("down", release="scores-alone")
