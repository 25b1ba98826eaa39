"""Trained models out of a record, against plain PyTorch: predictions, safetensors and ONNX."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

import fedstrata
from emulator.commands import main as cli
from fedstrata.datasets import load_dataset
from fedstrata.errors import DataError, ExperimentError, PluginError
from fedstrata.experiment import DataSettings
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods.registry import NAMES
from fedstrata.partitions import device_data
from tests.support.every_method import experiment_of
from tests.support.normed import Normed
from tests.support.records import summary_of
from tests.support.tiers import run_in_process

SEED = 5
ONE = np.zeros((1, 1, 8, 8))
TEXT = f"""
name: trained
seed: {SEED}
partition: {{kind: iid, devices: 4, examples_per_device: 40}}
model: {{name: "tests.support.normed:Normed", freeze: [first]}}
method: {{name: random, clusters: 2}}
training:
  global_rounds: 2
  lps_rounds_per_global_round: 1
  local_epochs: 5
  optimiser: {{name: adamw, learning_rate: 0.03}}
"""


class PlainCnn(nn.Module):
    """The network of `model.name: cnn` for images of 8×8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5, padding=2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        maps = nn.functional.max_pool2d(self.conv1(inputs.reshape(-1, 1, 8, 8)).relu(), 2)
        maps = nn.functional.max_pool2d(self.conv2(maps).relu(), 2)
        return self.fc3(self.fc2(self.fc1(maps.flatten(1)).relu()).relu())


def run(folder: Path, *overrides: str) -> Path:
    """Do a run; return the folder of its record."""
    return run_in_process(parse_experiment(TEXT, overrides=overrides), folder).folder


def altered(folder: Path, copy: Path, override: str, **summary: str) -> Path:
    """Copy a record, with another experiment and changes to its summary."""
    shutil.copytree(folder, copy)
    said = summary_of(copy)
    (copy / "summary.json").write_text(json.dumps({**said, **summary}), encoding="utf-8")
    (copy / "experiment.yaml").write_text(parse_experiment(TEXT, overrides=[override]).to_yaml(), encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def normed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("normed"))


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("cnn"), "model={name: cnn}", "data.download=true")


@pytest.fixture(scope="module")
def images() -> NDArray[np.float32]:
    found: NDArray[np.float32] = load_dataset(DataSettings(), 0).test.inputs[:600]  # more than are computed at once
    return found


def exported(folder: Path, *words: str) -> int:
    return cli.execute(["export", str(folder), *words])


def outputs_of(module: nn.Module, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    with torch.no_grad():
        return module.eval()(torch.tensor(inputs)).numpy()  # type: ignore[no-any-return]


def test_a_module_loads_the_file_strictly_and_computes_what_the_record_predicts(
    normed: Path, images: NDArray[np.float32], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lps-0.safetensors"
    assert exported(normed, "--to", "safetensors", "--cluster", "lps-0", "--out", str(file)) == 0
    assert capsys.readouterr().out == f"{file}: the model of lps-0, 8 tensors\n"
    module, record = Normed(), fedstrata.load(normed)
    module.load_state_dict(load_file(file), strict=True)
    torch.manual_seed(SEED)
    drawn = Normed()
    assert torch.equal(module.first.weight, drawn.first.weight)  # frozen
    assert not torch.equal(module.last.weight, drawn.last.weight)
    assert not torch.equal(module.norm.running_mean, drawn.norm.running_mean)
    plain = outputs_of(module, images)
    np.testing.assert_allclose(record.predict("lps-0", images), plain, rtol=0, atol=1e-5)
    device = str(record.devices["device"][record.devices["cluster"] == "lps-0"][0])
    assert (record.predict(device, images) == record.predict("lps-0", images)).all()
    assert (record.predict("lps-1", images) != record.predict("lps-0", images)).any()


@pytest.mark.runs
@pytest.mark.parametrize("method", NAMES)
def test_predictions_have_the_accuracy_that_devices_measured_or_the_page_says_that_they_are_refused(
    method: str, tmp_path: Path
) -> None:
    experiment = experiment_of(method)
    folder = run_in_process(experiment, tmp_path).folder
    record, dataset = fedstrata.load(folder), load_dataset(experiment.data, experiment.seed)
    measured = summary_of(folder)["device_accuracy"]
    page = (Path(__file__).parents[3] / "docs/use-the-model.md").read_text(encoding="utf-8")
    rows = [row.split("|") for row in page.splitlines() if row.startswith("| `")]
    refused = {name: row[3].strip() for row in rows for name in re.findall(r"`(\w+)`", row[1])}.get(method)
    for index, device in enumerate(experiment.device_ids()):
        held_out = device_data(experiment, dataset, index).test
        cluster = str(record.devices["cluster"][record.devices["device"] == device][0])
        for name in (device, cluster):
            if refused == "clusters and devices" or (refused and name == device):
                with pytest.raises(DataError, match="never left"):
                    record.predict(name, held_out.inputs)
            else:
                hits = record.predict(name, held_out.inputs).argmax(axis=1) == held_out.labels
                assert refused or hits.mean() == pytest.approx(measured[device])


def test_a_built_in_model_has_the_layers_of_its_name(cnn: Path, images: NDArray[np.float32], tmp_path: Path) -> None:
    file = tmp_path / "device.safetensors"
    assert exported(cnn, "--to", "safetensors", "--device", "device-003", "--out", str(file)) == 0
    module = PlainCnn()
    module.load_state_dict(load_file(file), strict=True)
    predicted = fedstrata.load(cnn).predict("device-003", images)
    with pytest.raises(
        ExperimentError, match=r"takes one input of float32, .* whole numbers; store float32, or pixels"
    ):
        fedstrata.load(cnn).predict("device-003", images.astype(int))
    np.testing.assert_allclose(predicted, outputs_of(module, images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["normed", "cnn"])
def test_onnx_gives_the_outputs_of_torch_for_any_number_of_inputs(
    kind: str, images: NDArray[np.float32], tmp_path: Path, request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    reference = pytest.importorskip("onnx.reference")
    folder, file = request.getfixturevalue(kind), tmp_path / "lps-1.onnx"
    assert exported(folder, "--to", "onnx", "--cluster", "lps-1", "--out", str(file)) == 0
    assert capsys.readouterr().out.endswith(" of torch's outputs on 3 training examples\n")
    (found,) = reference.ReferenceEvaluator(str(file)).run(None, {"inputs": images[:7]})
    np.testing.assert_allclose(found, fedstrata.load(folder).predict("lps-1", images[:7]), rtol=0, atol=1e-5)


def test_onnx_is_compared_on_draws_if_the_data_are_elsewhere_and_nothing_is_downloaded(
    cnn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")

    def absent(data: DataSettings, seed: int) -> None:
        assert not data.download
        raise DataError("the data set is not here")

    monkeypatch.setattr("emulator.shipped.data.load_dataset", absent)
    assert exported(cnn, "--to", "onnx", "--device", "device-000", "--out", str(tmp_path / "found.onnx")) == 0
    assert capsys.readouterr().out.endswith("on 3 drawn float32 inputs, because the data set is not here\n")


def test_a_module_with_a_number_that_depends_on_the_inputs_is_found(
    normed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setattr(Normed, "forward", lambda self, inputs: self.last.bias * inputs.flatten(1).sum().item())
    file = tmp_path / "found.onnx"
    assert exported(normed, "--to", "onnx", "--cluster", "lps-0", "--out", str(file)) == 2
    assert "model tests.support.normed:Normed cannot be exported to ONNX: outputs differ from torch's by" in said(
        capsys
    )
    assert not file.exists()


# --- what is refused --------------------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on standard error."""
    found = capsys.readouterr().err
    assert found.startswith("error: ")
    assert found.count("\n") == 1
    return found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--cluster", "lps-7"], (3, "has no cluster 'lps-7'; its clusters are lps-0, lps-1")),
        (["--device", "device-9"], (3, "has no model of device 'device-9': devices are device-000 to device-003, and")),
        ([], (2, "give either --cluster NAME or --device NAME")),
        (["--cluster", "lps-0", "--device", "device-000"], (2, "give either --cluster NAME or --device NAME")),
    ],
)
def test_a_model_that_is_not_there_is_one_line(
    cnn: Path, words: list[str], expected: tuple[int, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, reason = expected
    assert exported(cnn, "--to", "safetensors", *words, "--out", str(tmp_path / "file")) == code
    assert reason in said(capsys)


def test_files_and_options_are_refused_in_one_line(
    cnn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").touch()
    one = ("--to", "safetensors", "--cluster", "lps-0")
    assert exported(cnn, *one) == 2
    assert "--to safetensors writes one file; give --out FILE" in said(capsys)
    assert exported(cnn, *one, "--out", str(tmp_path / "there")) == 5
    assert "there exists; choose another file" in said(capsys)
    assert exported(cnn, *one, "--out", str(tmp_path / "no" / "file")) == 5
    assert "No such file or directory; choose another file" in said(capsys)
    assert exported(cnn, "--to", "mlflow", "--device", "device-000") == 2
    assert "--to mlflow exports the whole record" in said(capsys)


@pytest.mark.parametrize(
    ("override", "lacking"),
    [
        ("method=fedper", "last.weight, last.bias"),
        ("method=fedbn", "norm.weight, norm.bias, norm.running_mean, norm.running_var"),
        ("method=local", "norm.weight, norm.bias, last.weight, last.bias …"),
        ("model.buffers=device", "norm.running_mean, norm.running_var"),
    ],
)
def test_layers_that_stayed_on_devices_are_named(override: str, lacking: str, normed: Path, tmp_path: Path) -> None:
    folder = altered(normed, tmp_path / "other", override)
    for name in ("lps-0", "device-000"):
        with pytest.raises(
            DataError, match=re.escape(f"only a part of the model of {name}: {lacking} never left the devices")
        ):
            fedstrata.load(folder).predict(name, ONE)


@pytest.mark.parametrize("method", ["ditto", "fedavg_ft", "fedfomo"])
def test_a_devices_own_model_is_refused_and_the_clusters_is_given(method: str, normed: Path, tmp_path: Path) -> None:
    record = fedstrata.load(altered(normed, tmp_path / "other", f"method={method}", method=method))
    with pytest.raises(
        DataError, match=f"method {method}, device-000 uses a model of its own, which never left the device; .*, lps-0"
    ):
        record.predict("device-000", ONE)
    assert record.predict("lps-0", ONE).shape == (1, 10)


def test_code_and_inputs_that_do_not_fit_the_run_are_one_line(
    normed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = altered(normed, tmp_path / "wider", "model.options.width=32")
    with pytest.raises(DataError, match=r"has \(32,\) as norm.weight, but the model of lps-0 has \(16,\); use"):
        fedstrata.load(wider).predict("lps-0", ONE)
    missing = altered(normed, tmp_path / "missing", "name=missing")
    text = (missing / "experiment.yaml").read_text().replace("tests.support.normed:Normed", "my_lost_model:Net")
    (missing / "experiment.yaml").write_text(text)
    with pytest.raises(PluginError, match="there is no module my_lost_model in "):
        fedstrata.load(missing).predict("lps-0", ONE)
    record = fedstrata.load(normed)
    with pytest.raises(DataError, match=r"inputs have shape \(2, 9, 9\); give \(n, 1, 8, 8\)"):
        record.predict("lps-0", np.zeros((2, 9, 9)))
    with pytest.raises(PluginError, match="fails on inputs of shape"):
        record.predict("lps-0", ONE.astype(np.int64))
    assert record.predict("lps-0", ONE[:0]).shape == (0, 10)
    (missing / "models" / "lps-1.safetensors").write_bytes(b"no model")
    (missing / "models" / "lps-0.safetensors").unlink()
    for name in ("lps-0", "lps-1"):
        with pytest.raises(DataError, match=f"cannot read the model .*{name}.safetensors: "):
            fedstrata.load(missing).models[name]


@pytest.mark.runs
def test_a_model_that_no_device_measured_is_refused(tmp_path: Path) -> None:
    own = fedstrata.load(run(tmp_path / "once", "method=tests.support.corrected:Corrected"))
    with pytest.raises(DataError, match="no measurement of the model of lps-0: devices measured another model"):
        own.predict("lps-0", ONE)
    both = fedstrata.load(run(tmp_path / "twice", "method=tests.support.corrected:MeasuredTwice"))
    assert both.predict("lps-0", ONE).shape == (1, 10)
