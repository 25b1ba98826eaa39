"""Own code that goes along with the experiment."""

from pathlib import Path

import yaml

from tests.cluster.conftest import VALUES, Lab
from tests.support.records import summary

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
    assert summary(folder)["status"] == "completed"
    lab.here("down", release="own")
