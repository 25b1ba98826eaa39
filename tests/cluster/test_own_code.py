"""Own code that goes along with the experiment.

The tests of a torch module need to know under which other tag the nodes have images of GPS and LPS with torch:

    FEDSTRATA_BUILD_ARGS=EXTRAS=torch scripts/images --tag 0.2.0-torch --save images gps lps
    FEDSTRATA_TORCH_TAG=0.2.0-torch make test-cluster
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.conftest import ROOT, VALUES, Lab, run_here
from tests.support.own_rule import FILES, written
from tests.support.records import assert_same_result, summary_of

TORCH_TAG = os.environ.get("FEDSTRATA_TORCH_TAG", "")

CODE = """
import numpy as np

from fedstrata.datasets import Dataset, Examples


def load(settings):
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(400, 4)).astype(np.float32)
    labels = (inputs[:, 0] > 0).astype(np.int64)
    train, test = (Examples(inputs=inputs[part], labels=labels[part]) for part in (slice(300), slice(300, 400)))
    return Dataset(train=train, test=test, num_classes=2)
"""
EXPERIMENT = """
name: own-code
data: {name: "halves:load", input_shape: [4], num_classes: 2}
partition: {kind: iid, devices: 4, examples_per_device: 20}
method: {name: random, clusters: 2}
training: {global_rounds: 2}
"""


def test_a_file_given_with_the_experiment_is_imported_in_the_pods(lab: Lab, tmp_path: Path) -> None:
    code, experiment, values = (tmp_path / name for name in ("halves.py", "own-code.yaml", "values.yaml"))
    code.write_text(CODE)
    experiment.write_text(EXPERIMENT)
    values.write_text(yaml.safe_dump(VALUES))
    lab.here("up", str(experiment), "--code", str(code), "--values", str(values), release="own")
    folder = lab.folder / "own"
    lab.here("collect", "--out", str(folder), "--quiet", release="own")
    assert summary_of(folder)["status"] == "completed"
    lab.here("down", release="own")


def test_a_rule_and_an_attack_of_ones_own_have_the_bits_of_a_laptop(lab: Lab, tmp_path: Path) -> None:
    experiment, values = written(tmp_path), tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES))
    code = [word for name in FILES for word in ("--code", str(tmp_path / name))]
    lab.here("up", str(experiment), *code, "--values", str(values), release="rule")
    there = lab.folder / "rule"
    lab.here("collect", "--out", str(there), "--quiet", release="rule")
    assert_same_result(there, run_here(tmp_path / "here", experiment=experiment, start=tmp_path))
    assert (there / "factors.csv").read_bytes() == (tmp_path / "here" / "factors.csv").read_bytes()
    lab.here("down", release="rule")


MODULE = """
name: normed
seed: 5
partition: {kind: iid, devices: 5, examples_per_device: 40}
model: {name: "normed:Normed"}
topology: {lps: 2}
training:
  global_rounds: 3
  lps_rounds_per_global_round: 1
  batch_size: 16
  optimiser: {name: adamw, learning_rate: 0.01, clip_norm: 1.0, state: kept, schedule: {name: cosine}}
"""


def of_module(folder: Path, method: str, values: Mapping[str, Any]) -> list[str]:
    """Write an experiment with a torch module, and return what `up` takes for it. The experiment is the first."""
    code, experiment, chart_values = (folder / name for name in ("normed.py", "normed.yaml", "values.yaml"))
    shutil.copy(ROOT / "tests/support/normed.py", code)
    experiment.write_text(f"{MODULE}method: {method}\n")
    chart_values.write_text(yaml.safe_dump(dict(values)))
    return [str(experiment), "--code", str(code), "--values", str(chart_values)]


@pytest.mark.skipif(not TORCH_TAG, reason="needs FEDSTRATA_TORCH_TAG (see head)")
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_a_torch_module_with_kept_states_of_adamw_has_the_bits_of_a_laptop(
    lab: Lab, tmp_path: Path, method: str
) -> None:
    with_torch = {tier: {**VALUES[tier], "image": {"tag": TORCH_TAG}} for tier in ("gps", "lps")}
    asked = of_module(tmp_path, method, {**VALUES, **with_torch})
    lab.here("up", *asked, release=method)
    there = lab.folder / f"normed-{method}"
    lab.here("collect", "--out", str(there), "--quiet", release=method)
    assert_same_result(there, run_here(tmp_path / "here", experiment=asked[0], start=tmp_path))
    lab.here("down", release=method)


@pytest.mark.skipif(not TORCH_TAG, reason="the usual images are here if this one's are (see head)")
def test_a_gps_without_torch_says_how_to_build_an_image_with_it(lab: Lab, tmp_path: Path) -> None:
    asked = of_module(tmp_path, "fedavg", VALUES)
    said = lab.here("up", *asked, "--timeout", "60", release="bare", code=4)
    assert "build its image with EXTRAS" in said
    lab.here("down", release="bare")
