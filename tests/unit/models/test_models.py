"""Models: layouts, shared layers, initial weights, and outputs that agree with torch's own modules."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedstrata.datasets import DatasetInfo
from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment import ModelSettings
from fedstrata.experiment_file import parse_experiment
from fedstrata.models import Layer, Model, build_model, from_module
from fedstrata.models.model import INITIAL_WEIGHTS
from tests.support.torch_twins import assert_same_outputs, cnn_module, tensors

DIGITS = DatasetInfo(input_shape=(1, 8, 8), num_classes=10)
FASHION = DatasetInfo(input_shape=(1, 28, 28), num_classes=10)
CIFAR = DatasetInfo(input_shape=(3, 32, 32), num_classes=10)
MLP = {"fc1.weight": (32, 784), "fc1.bias": (32,), "fc2.weight": (10, 32), "fc2.bias": (10,)}


def settings(name: str, **values: object) -> ModelSettings:
    return ModelSettings.model_validate({"name": name, **values})


def shapes(model: Model) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in model.layout.tensors}


def cnn_shapes(channels: int, flattened: int) -> dict[str, tuple[int, ...]]:
    return {
        "conv1.weight": (6, channels, 5, 5),
        "conv1.bias": (6,),
        "conv2.weight": (16, 6, 5, 5),
        "conv2.bias": (16,),
        "fc1.weight": (120, flattened),
        "fc1.bias": (120,),
        "fc2.weight": (84, 120),
        "fc2.bias": (84,),
        "fc3.weight": (10, 84),
        "fc3.bias": (10,),
    }


def test_the_mlp_on_fashion_mnist_is_784_32_10() -> None:
    model = build_model(settings("mlp"), FASHION)
    assert shapes(model) == MLP
    assert model.layout.names == tuple(MLP)
    assert model.layout.size == 784 * 32 + 32 + 32 * 10 + 10


def test_the_mlp_has_the_widths_it_is_given() -> None:
    model = build_model(settings("mlp", hidden=[20, 7]), DIGITS)
    weights = {name: shape for name, shape in shapes(model).items() if name.endswith("weight")}
    assert weights == {"fc1.weight": (20, 64), "fc2.weight": (7, 20), "fc3.weight": (10, 7)}


@pytest.mark.parametrize(
    ("info", "channels", "flattened"),
    [(CIFAR, 3, 16 * 5 * 5), (FASHION, 1, 16 * 7 * 7), (DIGITS, 1, 16 * 2 * 2)],
    ids=["32x32", "28x28", "8x8"],
)
def test_the_cnn_fits_its_images(info: DatasetInfo, channels: int, flattened: int) -> None:
    model = build_model(settings("cnn"), info)
    assert shapes(model) == cnn_shapes(channels, flattened)
    outputs = model.outputs(tensors(model.layout, model.initial(0)), torch.zeros(3, *info.input_shape))
    assert outputs.shape == (3, 10)


def test_the_cnn_reads_an_image_without_channels_as_grey() -> None:
    with_channel = build_model(settings("cnn"), DIGITS)
    without = build_model(settings("cnn"), DatasetInfo(input_shape=(8, 8), num_classes=10))
    images = torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(1))
    weights = tensors(without.layout, without.initial(3))
    assert torch.equal(without.outputs(weights, images), with_channel.outputs(weights, images.reshape(2, 1, 8, 8)))


@pytest.mark.parametrize("input_shape", [(64,), (32, 32, 3), (1, 3, 8), (1, 1, 8, 8)])
def test_the_cnn_refuses_what_is_no_image(input_shape: tuple[int, ...]) -> None:
    with pytest.raises(ExperimentError, match="model cnn needs images"):
        build_model(settings("cnn"), DatasetInfo(input_shape=input_shape, num_classes=10))


def test_the_smallest_image_leaves_one_pixel() -> None:
    model = build_model(settings("cnn"), DatasetInfo(input_shape=(1, 4, 5), num_classes=2))
    assert shapes(model)["fc1.weight"] == (120, 16)


def test_the_mlp_computes_what_torch_modules_compute() -> None:
    model = build_model(settings("mlp", hidden=[16, 12]), DIGITS)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 10))
    assert_same_outputs(model, module, DIGITS, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("info", "padding", "flattened"), [(CIFAR, 0, 400), (FASHION, 2, 784), (DIGITS, 2, 64)], ids=["32", "28", "8"]
)
def test_the_cnn_computes_what_torch_modules_compute(info: DatasetInfo, padding: int, flattened: int) -> None:
    module = cnn_module(info.input_shape[0], padding, flattened)
    assert_same_outputs(build_model(settings("cnn"), info), module, info, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "values", "shared"),
    [
        ("mlp", {}, ("fc1.weight", "fc1.bias")),
        ("mlp", {"hidden": [8, 8]}, ("fc1.weight", "fc1.bias")),
        ("mlp", {"hidden": []}, ()),
        ("mlp", {"shared": []}, ()),
        ("mlp", {"shared": ["fc2", "fc1"]}, tuple(MLP)),
        ("cnn", {}, ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias")),
        ("cnn", {"shared": ["conv1"]}, ("conv1.weight", "conv1.bias")),
    ],
)
def test_shared_tensors_are_those_of_the_named_layers_in_layout_order(
    name: str, values: dict[str, object], shared: tuple[str, ...]
) -> None:
    assert build_model(settings(name, **values), FASHION).shared == shared


@pytest.mark.parametrize("layer", ["fc9", "fc", "fc1.weight", ""])
def test_an_unknown_shared_layer_is_refused_with_the_layers_there_are(layer: str) -> None:
    with pytest.raises(ExperimentError, match=r"no layer .*choose from fc1, fc2"):
        build_model(settings("mlp", shared=[layer]), FASHION)


def test_hidden_is_left_to_the_model_unless_the_experiment_file_says_it() -> None:
    text = "{name: t, partition: {kind: iid, devices: 2, examples_per_device: 5}, model: {name: %s}}"
    assert parse_experiment(text % "cnn").model.hidden is None
    assert parse_experiment(text % "cnn, hidden: [9]").model.hidden == (9,)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_initial_weights_are_uniform_within_one_over_the_root_of_fan_in(name: str) -> None:
    model = build_model(settings(name), FASHION)
    flat = model.initial(7)
    assert flat.dtype == np.float32
    assert flat.shape == (model.layout.size,)
    fan_in = 1
    for tensor_name, view in model.layout.views(flat).items():
        if tensor_name.endswith("weight"):
            fan_in = int(np.prod(view.shape[1:]))
        bound = 1 / np.sqrt(fan_in)
        assert np.abs(view).max() <= bound * (1 + 1e-6), tensor_name
        if view.size > 500:  # enough draws to come near both ends and the middle
            assert view.min() < -0.98 * bound, tensor_name
            assert view.max() > 0.98 * bound, tensor_name
            assert abs(view.mean()) < 0.1 * bound, tensor_name


def test_each_tensors_initial_weights_have_their_own_address() -> None:
    model = build_model(settings("mlp"), FASHION)
    third = np.random.default_rng([7, INITIAL_WEIGHTS, 2]).uniform(-1 / np.sqrt(32), 1 / np.sqrt(32), (10, 32))
    np.testing.assert_array_equal(model.layout.views(model.initial(7))["fc2.weight"], third.astype(np.float32))


def test_initial_weights_repeat_for_a_seed_and_differ_between_seeds() -> None:
    model = build_model(settings("cnn"), DIGITS)
    again = build_model(settings("cnn"), DIGITS)
    np.testing.assert_array_equal(model.initial(1), again.initial(1))
    assert not np.any(model.initial(1) == model.initial(2))
    assert model.initial(2**63 - 1).shape == model.initial(0).shape


def test_servers_know_shapes_and_draw_initial_weights_without_torch_or_scikit_learn() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = sys.modules['torch'] = None\n"  # the import of either fails
        "from fedstrata.datasets import dataset_info\n"
        "from fedstrata.experiment import DataSettings, ModelSettings\n"
        "from fedstrata.models import build_model\n"
        "for data in ('digits', 'fashion-mnist'):\n"
        "    info = dataset_info(DataSettings(name=data)); print(info.input_shape)\n"
        "    for name in ('mlp', 'cnn'):\n"
        "        model = build_model(ModelSettings(name=name), info)\n"
        "        assert len(model.initial(1)) == model.layout.size\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (run.stdout, run.returncode) == ("(1, 8, 8)\n(1, 28, 28)\n", 0), run.stderr


OWN = """
from torch import nn
from fedstrata.models import Layer, Model, from_module

def module(settings, info):
    def make():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, info.num_classes))
    return from_module(make, shared=["1"])

def layers(settings, info):
    layer = Layer(name="only", shape=(info.num_classes, 64))
    def outputs(weights, inputs):
        return inputs.flatten(1) @ weights["only.weight"].T + weights["only.bias"]
    return Model.of_layers([layer], shared=[], outputs=outputs)

def nothing(settings, info):
    return None

def a_module(settings, info):
    return from_module(nn.Linear(64, 10))

def no_module(settings, info):
    return from_module(lambda: None)

def no_parameters(settings, info):
    return from_module(nn.Flatten)

linear = nn.Linear(64, 10)

def broken(settings, info):
    raise KeyError("width")
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models_for_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("own_models")
def test_an_own_model_of_layers_is_built_by_reference() -> None:
    model = build_model(settings("own_models_for_test:layers", shared=["only"]), DIGITS)
    assert model.shared == ("only.weight", "only.bias")
    assert model.initial(0).shape == (650,)


@pytest.mark.usefixtures("own_models")
def test_an_own_torch_module_is_built_by_reference_with_its_own_initial_weights() -> None:
    model = build_model(settings("own_models_for_test:module"), DIGITS)
    assert model.layout.names == ("1.weight", "1.bias", "2.weight", "2.bias", "4.weight", "4.bias")
    assert model.shared == ("1.weight", "1.bias")
    np.testing.assert_array_equal(model.layout.views(model.initial(1))["2.weight"], np.ones(6))
    np.testing.assert_array_equal(model.initial(1), model.initial(1))
    assert not np.array_equal(model.initial(1), model.initial(2))


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("nothing", "or return a fedstrata.models.Model, not NoneType; for a class Net of modules, return from_mod"),
        ("broken", "KeyError: 'width'"),
        ("a_module", "from_module got a module; give its class, Linear, or a function that makes it"),
        ("no_module", "from_module needs a function that makes a torch.nn.Module, not None"),
        ("linear", "own_models_for_test:linear is a module; name its class, Linear"),
    ],
)
def test_an_own_function_that_gives_no_model_is_refused(function: str, reason: str) -> None:
    with pytest.raises(PluginError, match=reason):
        build_model(settings(f"own_models_for_test:{function}"), DIGITS)


@pytest.mark.usefixtures("own_models")
def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(ExperimentError, match="the module has no parameters; make its layers attributes of the module"):
        build_model(settings("own_models_for_test:no_parameters"), DIGITS)


def test_by_default_all_layers_but_the_last_are_shared_and_a_text_names_one_layer() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))

    assert from_module(make).shared == from_module(make, shared="0").shared == ("0.weight", "0.bias")
    assert from_module(lambda: nn.Linear(4, 3)).shared == ()


def test_a_torch_module_computes_as_itself_and_leaves_the_global_generator_alone() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10))

    torch.manual_seed(11)
    before = torch.get_rng_state()
    model = from_module(make, shared=["0"])
    flat = model.initial(4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    expected = make()
    inputs = torch.rand(3, 1, 8, 8)
    assert torch.equal(model.outputs(tensors(model.layout, flat), inputs), expected(inputs))


def with_sparse(as_parameter: bool) -> nn.Module:
    module, sparse = nn.Linear(4, 4), torch.eye(4).to_sparse()
    if as_parameter:
        module.mask = nn.Parameter(sparse)
    else:
        module.register_buffer("mask", sparse)
    return module


def with_double_statistics() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    module[1].running_mean = module[1].running_mean.double()
    return module


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Linear(4, 4).double(), "parameter weight is torch.float64; call .float"),
        (
            lambda: nn.Linear(4, 4, dtype=torch.complex64),
            "parameter weight is torch.complex64, and only float32 is sent; hold its real and imagi",
        ),
        (with_double_statistics, "buffer 1.running_mean is torch.float64; make statistics float32"),
        (partial(with_sparse, as_parameter=True), r"mask is a sparse tensor \(torch.sparse_coo\); make it dense"),
        (partial(with_sparse, as_parameter=False), r"mask is a sparse tensor \(torch.sparse_coo\); make it dense"),
    ],
    ids=["double precision", "complex numbers", "double statistics", "sparse parameter", "sparse buffer"],
)
def test_a_torch_module_of_other_numbers_than_float32_is_refused(make: object, reason: str) -> None:
    with pytest.raises(ExperimentError, match=reason):
        from_module(make, shared=[])  # type: ignore[arg-type]


def test_a_model_made_by_hand_must_share_tensors_that_it_has() -> None:
    layer = Layer(name="a", shape=(2, 3))
    good = Model.of_layers([layer], shared=["a"], outputs=lambda weights, inputs: inputs)
    with pytest.raises(ExperimentError, match="in the layout's order"):
        Model(layout=good.layout, shared=("a.bias", "a.weight"), initial=good.initial, outputs=good.outputs)


def test_a_built_in_model_has_an_output_for_each_label_or_number_of_a_target() -> None:
    settings = ModelSettings(name="mlp", hidden=(4,))
    for info, outputs in (
        (DatasetInfo(input_shape=(3,), num_classes=7), 7),
        (DatasetInfo(input_shape=(3,)), 1),
        (DatasetInfo(input_shape=(3,), target_shape=(2,)), 2),
    ):
        assert build_model(settings, info).dense == (3, 4, outputs)
