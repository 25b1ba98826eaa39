"""Own code that is edited between runs: a sweep and a continued run refuse it, and a session uses the new text."""

import sys
from pathlib import Path

import numpy as np
import pytest

import fedstrata
from fedstrata.errors import ExperimentError
from tests.support.programs import command_in

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(64, 8), torch.nn.Linear(8, 10)

    def forward(self, inputs):
        return self.b(torch.{activation}(self.a(inputs.flatten(1))))
"""
MINE = """
from fedstrata.methods import Outcome
from fedstrata.methods.fed_avg import FedAvg

class Mine(FedAvg):
    async def local(self, work):
        import constants  # only devices import this
        return Outcome.of(await work.train(work.start + constants.SHIFT))
"""
EXPERIMENT = {
    "name": "edited",
    "partition": {"kind": "iid", "devices": 2, "examples_per_device": 40},
    "model": {"name": "net:Net"},
    "method": "mine:Mine",
    "training": {"global_rounds": 1, "lps_rounds_per_global_round": 1},
}
BUILT_IN = {"method": "fedavg", "model": {"name": "mlp"}}
SWEEP = {"base": EXPERIMENT, "seeds": [1], "cells": {"own": {}, "fedavg": BUILT_IN}}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "net.py").write_text(NET.format(activation="relu"))
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "constants.py").write_text("SHIFT = 0\n")
    return tmp_path


def _error(home: Path, *words: str) -> str:
    done = command_in(home, *words)
    assert done.returncode != 0, done.stdout
    return done.stderr


@pytest.mark.runs
def test_a_sweep_and_a_continued_run_name_a_file_that_was_edited_after_the_run(home: Path) -> None:
    swept = fedstrata.sweep(SWEEP, out="sweep", quiet=True)
    run = swept.record("own", 1)
    assert set(run.experiment["files"]) == {"constants.py", "mine.py", "net.py"}
    assert "files" not in swept.record("fedavg", 1).experiment
    (home / "constants.py").write_text("SHIFT = 1\n")
    with pytest.raises(fedstrata.errors.OutputError, match=r"constants.py changed after the run in sweep/runs/own"):
        fedstrata.sweep(SWEEP, out="sweep", quiet=True)
    told = _error(home, "run", "--resume", str(run.folder))
    assert "constants.py has changed since the run began" in told
    assert run.predict("lps-0", np.zeros((1, 1, 8, 8))).shape == (1, 10)  # the model's own file is unchanged


@pytest.mark.runs
def test_a_model_that_is_edited_in_a_session_predicts_by_the_text_of_its_run(home: Path) -> None:
    inputs = np.random.default_rng(0).random((4, 1, 8, 8), np.float32)
    records = []
    for activation in ("relu", "tanh"):
        (home / "net.py").write_text(NET.format(activation=activation))
        records.append(fedstrata.run(EXPERIMENT, quiet=True))
        weights = records[-1].models["lps-0"]
        hidden = inputs.reshape(4, 64) @ weights["a.weight"].T + weights["a.bias"]
        hidden = np.tanh(hidden) if activation == "tanh" else np.maximum(hidden, 0)
        expected = hidden @ weights["b.weight"].T + weights["b.bias"]
        np.testing.assert_allclose(records[-1].predict("lps-0", inputs), expected, atol=1e-5)
    with pytest.raises(ExperimentError, match=r"net.py has changed since the run began"):
        fedstrata.load(records[0].folder).predict("lps-0", inputs)
