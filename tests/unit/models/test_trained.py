"""Modules with unusual tensors and inputs, as trained models."""

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from emulator.results.model_files import write_model
from emulator.results.trained import Trained
from emulator.shipped import extras
from fedstrata.datasets import DatasetInfo
from fedstrata.errors import DataError, MissingPackageError, OutputError, PluginError
from fedstrata.experiment_file import parse_experiment
from fedstrata.models import Model, build_model


class Tied(nn.Module):
    """Two tensors that are one, a frozen one of 16 bits, and a further input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.last = nn.Linear(4, 10, bias=False)
        self.last.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.rand(4).to(torch.bfloat16), requires_grad=False)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.last((self.embedding(tokens) * self.scale.float() * mask[..., None]).sum(dim=1))


TEXT = """
name: tied
seed: 3
data: {name: folder, folder: nowhere, input_shape: [5], num_classes: 10}
partition: {kind: iid, devices: 2, examples_per_device: 20}
model: {name: "tests.unit.models.test_trained:Tied"}
method: fedavg
"""
TOKENS = np.arange(15).reshape(3, 5) % 10
MASK = np.ones((3, 5))


@pytest.fixture
def tied() -> Trained:
    experiment = parse_experiment(TEXT)
    model: Model = build_model(experiment.model, DatasetInfo(input_shape=(5,), num_classes=10)).of_run(3)
    weights = {name: view + 1 for name, view in model.layout.views(model.initial(3)).items()}
    return Trained(name="lps-0", experiment=experiment, model=model, weights=weights)


def test_tied_tensors_load_strictly_and_further_inputs_have_names(tied: Trained, tmp_path: Path) -> None:
    write_model(tied, "safetensors", tmp_path / "tied.safetensors")
    module = Tied()
    module.load_state_dict(load_file(tmp_path / "tied.safetensors"), strict=True)
    with torch.no_grad():
        plain = module(torch.tensor(TOKENS), torch.tensor(MASK, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(tied.predict(TOKENS, {"mask": MASK}), plain, rtol=0, atol=1e-5)
    with pytest.raises(PluginError, match="forward gets the inputs only"):
        tied.predict(TOKENS, {})


@pytest.mark.parametrize("inputs", [[[1], [1, 2]], torch.ones(2, 2, requires_grad=True), torch.ones(2, 2).to_sparse()])
def test_inputs_that_make_no_array_are_refused(tied: Trained, inputs: Any) -> None:
    with pytest.raises(DataError, match="inputs cannot be made a NumPy array: "):
        tied.predict(inputs, {"mask": MASK})


def test_a_model_that_does_not_fit_on_the_disk_leaves_no_file(tied: Trained, tmp_path: Path) -> None:
    path, (soft, hard) = tmp_path / "tied.safetensors", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        for _ in range(2):
            with pytest.raises(OutputError, match="cannot write"):
                write_model(tied, "safetensors", path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not path.exists()


def test_onnx_needs_the_data_if_inputs_are_no_float32(tied: Trained, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    with pytest.raises(PluginError, match="inputs are 3 drawn float32 inputs, because the data set is not here"):
        write_model(tied, "onnx", tmp_path / "tied.onnx")


def test_without_onnx_the_command_that_installs_it_is_told(
    tied: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(extras, "importlib", SimpleNamespace(import_module=missing))
    with pytest.raises(MissingPackageError, match=r"onnx is not installed here .*pip install 'fedstrata\[onnx\]'"):
        write_model(tied, "onnx", tmp_path / "tied.onnx")
