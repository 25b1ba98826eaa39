"""The four kinds of a module's tensors: weights, statistics, frozen tensors and counters."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from device.evaluation import evaluate
from device.training import LocalResult, limit_threads, train
from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment import ModelSettings
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Facts, Pull, make_method
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.methods.gradients import gradient_at
from fedstrata.models import Model, build_model, from_module
from fedstrata.store.named_files import sha256_of
from fedstrata.streams.architectures import Architectures
from fedstrata.tasks import CLASSIFICATION
from tests.support.training_jobs import DIGITS, SEED, descend, examples, job_with, orders

HERE = "tests.unit.models.test_module_tensors"
TWO_EPOCHS = {"local_epochs": 2}  # of four batches of 16, the last of them smaller
BODY = ("body.0", "body.1", "head")


class Normed(nn.Module):
    """A dense network with batch normalisation."""

    def __init__(self, width: int = 16, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width, momentum=momentum))
        self.head = nn.Linear(width, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs.flatten(1)).relu())


class Moving(nn.Module):
    """A module that puts a new tensor into the place of its statistics, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)
        self.register_buffer("mean", torch.zeros(64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        flat = inputs.flatten(1)
        if self.training:
            self.calls = self.calls + 1
            self.mean = self.mean + (flat.mean(0) - self.mean) / self.calls
        return self.last(flat - self.mean)


class Adapted(nn.Module):
    """A frozen part and an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.norm, self.adapter = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.adapter(self.norm(self.frozen(inputs.flatten(1))))


class Failing(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        raise ValueError(f"no module is {width} wide")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    limit_threads()


def settings(name: str = "Normed", **values: Any) -> ModelSettings:
    return ModelSettings.model_validate({"name": f"{HERE}:{name}", **values})


def trained(model: Model, *, length: Mapping[str, int] = TWO_EPOCHS, **changes: Any) -> LocalResult:
    return train(job_with(model, length, **{"start": model.initial(SEED), **changes}))


def plainly_trained(make: Callable[[], nn.Module], freeze: Callable[[Any], None] = lambda _: None) -> Any:
    """The same by torch alone."""
    torch.manual_seed(SEED)
    module = make()
    module.train()
    freeze(module)
    sgd = torch.optim.SGD([each for each in module.parameters() if each.requires_grad], 0.05)
    inputs, labels = torch.tensor(examples().inputs), torch.tensor(examples().labels)
    descend(sgd, orders(), lambda batch: cross_entropy(module(inputs[batch]), labels[batch]))
    return module.eval()


def tensors(model: Model, result: LocalResult) -> Mapping[str, np.ndarray]:
    return model.layout.views(result.weights)


# --- statistics ---------------------------------------------------------------------------------------------------


def test_statistics_are_the_last_tensors_and_have_no_gradient() -> None:
    model = build_model(settings(), DIGITS)
    assert model.layout.names == (
        *("body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "head.weight", "head.bias"),
        *("body.1.running_mean", "body.1.running_var"),
    )
    assert model.statistics == ("body.1.running_mean", "body.1.running_var")
    assert model.trainable.size == model.layout.size - 32
    assert model.normalisations == ("body.1.weight", "body.1.bias", *model.statistics)
    assert gradient_at(model, model.initial(SEED), examples(), np.arange(50)).shape == (model.trainable.size,)


@pytest.mark.parametrize("make", [Normed, Moving])
def test_a_module_with_statistics_trains_and_is_measured_as_by_plain_pytorch(make: Callable[[], nn.Module]) -> None:
    model = from_module(make, shared=[]).of_run(SEED)
    result, module = trained(model), plainly_trained(make)
    for name, value in tensors(model, result).items():
        assert value.tobytes() == module.state_dict()[name].numpy().tobytes(), name
    with torch.no_grad():
        outputs = module(torch.tensor(examples().inputs))
    hits = int((outputs.argmax(1) == torch.tensor(examples().labels)).sum())
    assert evaluate(model, result.weights, examples(), CLASSIFICATION).sums == (hits,)


@pytest.mark.parametrize("make", [Moving, lambda: Normed(momentum=None)])
def test_counters_begin_each_training_anew_whoever_trained_before(make: Callable[[], nn.Module]) -> None:
    model = from_module(make, shared=[]).of_run(SEED)
    first = trained(model)
    trained(model, device_index=9)
    evaluate(model, first.weights, examples(), CLASSIFICATION)
    assert trained(model).weights.tobytes() == first.weights.tobytes()
    anew = from_module(make, shared=[]).of_run(SEED)
    trained(anew, device_index=4)
    assert trained(anew).weights.tobytes() == first.weights.tobytes()


def test_a_pull_applies_to_weights_alone() -> None:
    model = build_model(settings(), DIGITS)
    far = model.initial(SEED) + np.float32(1)
    held = trained(model, correct=Pull(1e4), beside=(far,), length={"local_steps": 1})
    mean = tensors(model, held)["body.1.running_mean"]
    free = tensors(model, trained(model, length={"local_steps": 1}))["body.1.running_mean"]
    assert mean.tobytes() == free.tobytes()
    assert np.abs(tensors(model, held)["head.weight"]).min() > 100


def test_a_batch_that_a_module_cannot_take_is_named_in_one_line() -> None:
    with pytest.raises(PluginError, match=r"the module fails on inputs of shape \(1, 1, 8, 8\) with ValueError: Exp"):
        trained(build_model(settings(), DIGITS), examples=examples(17))


class Raising(nn.Module):
    """A module whose backward pass fails."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(inputs.flatten(1))
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: gradient @ gradient)
        return outputs


def test_a_gradient_that_cannot_be_computed_is_told_in_one_line() -> None:
    with pytest.raises(PluginError, match="the gradient of the loss cannot be computed: RuntimeError: mat1 and mat2"):
        trained(from_module(Raising), examples=examples(32))


@pytest.mark.parametrize(("buffers", "travel", "stay"), [("average", 8, 0), ("device", 6, 2), ("freeze", 6, 0)])
def test_statistics_travel_stay_or_are_no_tensors_of_the_model(buffers: str, travel: int, stay: int) -> None:
    text = f"""
        name: x
        partition: {{kind: iid, devices: 4, examples_per_device: 50}}
        method: fedavg
        model: {{name: "{HERE}:Normed", buffers: {buffers}}}"""
    experiment = parse_experiment(text)
    streams = Architectures(experiment, make_method(experiment)).main.streams
    assert (len(streams.travelling.tensors), len(streams.own.tensors)) == (travel, stay)


def test_frozen_statistics_are_used_in_training_and_stay_as_they_were() -> None:
    model = build_model(settings(buffers="freeze"), DIGITS).of_run(SEED)
    module = plainly_trained(Normed, lambda module: module.body[1].eval())
    for name, value in tensors(model, trained(model)).items():
        assert value.tobytes() == module.state_dict()[name].numpy().tobytes(), name


# --- frozen tensors -----------------------------------------------------------------------------------------------


def test_frozen_layers_neither_train_nor_travel() -> None:
    model = build_model(settings("Adapted", freeze=["frozen", "norm"]), DIGITS).of_run(SEED)
    assert model.layout.names == ("adapter.weight", "adapter.bias")
    assert model.frozen == {"frozen.weight": (32, 64), "frozen.bias": (32,), "norm.weight": (32,), "norm.bias": (32,)}

    def freeze(module: Any) -> None:
        module.frozen.requires_grad_(False)
        module.norm.requires_grad_(False).eval()

    module = plainly_trained(Adapted, freeze)
    for name, value in tensors(model, trained(model)).items():
        assert value.tobytes() == module.state_dict()[name].numpy().tobytes(), name


def saved(path: Path, **changes: Any) -> Path:
    torch.manual_seed(1)
    tensors = {name: tensor for name, tensor in Adapted().state_dict().items() if not name.startswith("adapter")}
    changed = {name: tensor for name, tensor in {**tensors, **changes}.items() if tensor is not None}
    save_file(changed, path)
    return path


def from_file(path: Path, *frozen: str) -> dict[str, Any]:
    """The settings of a model whose weights are in a file, and whose first layer and these are frozen."""
    return {"freeze": ["frozen", *frozen], "weights": path, "weights_sha256": sha256_of(path, "model.weights")}


def test_weights_of_a_file_are_those_of_the_frozen_layers(tmp_path: Path) -> None:
    path = saved(tmp_path / "backbone.safetensors")
    model = build_model(settings("Adapted", **from_file(path, "norm")), DIGITS).of_run(SEED)
    torch.manual_seed(SEED)
    module = Adapted().eval()
    torch.manual_seed(1)
    other = Adapted()
    module.frozen = other.frozen
    weights = {name: torch.tensor(view) for name, view in model.layout.views(model.initial(SEED)).items()}
    inputs = torch.tensor(examples().inputs)
    torch.testing.assert_close(model.outputs(weights, inputs), module(inputs), rtol=0, atol=0)


def test_weights_of_a_file_are_what_training_begins_with(tmp_path: Path) -> None:
    path = saved(tmp_path / "all.safetensors", **{"adapter.bias": torch.full((10,), 0.25)})
    model = build_model(settings("Adapted", **from_file(path)), DIGITS)
    assert model.layout.views(model.initial(SEED))["adapter.bias"].tolist() == [0.25] * 10
    assert model.of_run(SEED).initial(SEED).tobytes() == model.initial(SEED).tobytes()


def test_servers_make_no_module_if_the_file_has_all_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"adapter.weight": torch.rand(10, 32, dtype=torch.float64), "adapter.bias": torch.rand(10).half()}
    path = saved(tmp_path / "whole.safetensors", **whole)
    model = build_model(settings("Adapted", **from_file(path, "norm")), DIGITS)
    expected = model.of_run(SEED).initial(SEED)  # as a device makes it
    monkeypatch.setattr(Adapted, "__init__", None)
    assert model.initial(SEED).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frozen.weight": None}, "has no tensor frozen.weight, which is frozen; use weights of this module, or"),
        ({"frozen.bias": torch.zeros(3)}, r"frozen.bias of shape \[3\], and the module has one of shape \[32\]"),
        ({"fc.bias": torch.zeros(3)}, r"has a tensor fc.bias of shape \[3\], and the module has no such tensor"),
        (
            {"norm.bias": torch.zeros(32, dtype=torch.int8)},
            "has norm.bias as I8; write it as one of F32, F64, F16, I64",
        ),
    ],
)
def test_weights_of_another_module_are_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = saved(tmp_path / "w.safetensors", **changes)
    with pytest.raises(ExperimentError, match=message) as refused:
        build_model(settings("Adapted", **from_file(path)), DIGITS)
    assert str(refused.value).startswith(f"model.weights: {path} ")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_safetensors_file_or_has_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(ExperimentError, match="is not a safetensors file; write it with"):
        build_model(settings("Adapted", **from_file(path)), DIGITS)
    with pytest.raises(
        ExperimentError, match=r"the SHA-256 of .* begins with .*, and the run's file with 000000000000; put the run's"
    ):
        build_model(settings("Adapted", **{**from_file(path), "weights_sha256": "0" * 64}), DIGITS)


def test_the_hash_of_the_weights_is_part_of_the_runs_id_and_their_place_is_not(tmp_path: Path) -> None:
    def digest(path: Path) -> str:
        text = f"""
            name: x
            partition: {{kind: iid, devices: 4, examples_per_device: 50}}
            method: fedavg
            model: {{name: "{HERE}:Adapted", freeze: [frozen], weights: {path}}}"""
        return parse_experiment(text).digest

    (tmp_path / "elsewhere").mkdir()
    same = digest(saved(tmp_path / "a.safetensors")), digest(saved(tmp_path / "elsewhere" / "b.safetensors"))
    assert same[0] == same[1] != digest(saved(tmp_path / "c.safetensors", **{"frozen.bias": torch.zeros(32)}))
    with pytest.raises(ExperimentError, match=r"model.weights: cannot read .*none.safetensors: No such file"):
        digest(tmp_path / "none.safetensors")


# --- classes ------------------------------------------------------------------------------------------------------


def test_a_class_is_made_with_the_options_and_shares_all_layers_but_the_last() -> None:
    model = build_model(settings(options={"width": 5}), DIGITS)
    assert model.layout.tensors[0].shape == (5, 64)
    assert model.shared == tuple(name for name in model.layout.names if not name.startswith("head"))
    assert build_model(settings(shared=["head"]), DIGITS).shared == ("head.weight", "head.bias")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": f"{HERE}:Normed", "options": {"depth": 3}}, r"Normed failed with TypeError: .*'depth'"),
        ({"name": f"{HERE}:Failing", "options": {"width": 3}}, "Failing failed with ValueError: no module is 3 wide"),
        ({"name": f"{HERE}:Normed", "freeze": ["tail"]}, "model.freeze: the model has no tensor or layer 'tail'; its"),
        (
            {"name": f"{HERE}:Normed", "freeze": ["*"]},
            "the module has no parameter to train: all have requires_grad False or",
        ),
    ],
)
def test_settings_that_a_module_does_not_take_are_refused_in_one_line(section: dict[str, Any], message: str) -> None:
    with pytest.raises((ExperimentError, PluginError), match=message) as refused:
        build_model(ModelSettings.model_validate(section), DIGITS)
    assert "\n" not in str(refused.value)


def test_a_built_in_model_takes_no_settings_of_modules() -> None:
    with pytest.raises(ValueError, match="freeze is only for your own torch modules, not for mlp; remove it"):
        ModelSettings(freeze=("fc1",))
    with pytest.raises(ValueError, match="buffers is only for your own torch modules, not for mlp; remove it"):
        ModelSettings(buffers="device")


def test_a_method_knows_which_tensors_train() -> None:
    facts = Facts(device_count=2, make_model=lambda: build_model(settings(), DIGITS))
    assert facts.trainable.size == facts.layout.size - 32
    assert FedAvg(FedAvg.Options(name="fedavg"), facts).channels(facts.model)[0].tensors == facts.layout
