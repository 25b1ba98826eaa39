"""The papers' convolutional models: known sizes, and the arithmetic of torch's own modules."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from fedstrata.datasets import DatasetInfo
from fedstrata.errors import ExperimentError
from fedstrata.experiment import ModelSettings
from fedstrata.models import Model, build_model
from tests.support.torch_twins import assert_same_outputs, tensors

GREY = DatasetInfo(input_shape=(1, 28, 28), num_classes=10)
PADDED = DatasetInfo(input_shape=(1, 32, 32), num_classes=10)
CIFAR = DatasetInfo(input_shape=(3, 32, 32), num_classes=10)
DIGITS = DatasetInfo(input_shape=(1, 8, 8), num_classes=10)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def model_of(name: str, info: DatasetInfo, **values: object) -> Model:
    return build_model(ModelSettings.model_validate({"name": name, **values}), info)


# --- LeNet-5 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("info", [GREY, PADDED], ids=["28", "32"])
def test_lenet5_has_the_61706_weights_of_the_textbooks(info: DatasetInfo) -> None:
    model = model_of("lenet5", info)
    assert model.layout.size == 61_706
    assert model.shared == ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias")


@pytest.mark.parametrize(("info", "padding"), [(GREY, 2), (PADDED, 0), (CIFAR, 0)], ids=["28", "32", "colour"])
def test_lenet5_computes_what_torch_modules_compute(info: DatasetInfo, padding: int) -> None:
    module = nn.Sequential(
        nn.Conv2d(info.input_shape[0], 6, 5, padding=padding),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, 10),
    )
    assert_same_outputs(model_of("lenet5", info), module, info, **CLOSE)


def test_the_smallest_image_of_lenet5_leaves_one_pixel() -> None:
    model = model_of("lenet5", DatasetInfo(input_shape=(1, 12, 12), num_classes=2))
    assert model.layout.views(model.initial(0))["fc1.weight"].shape == (120, 16)
    assert model.outputs(tensors(model.layout, model.initial(0)), torch.zeros(3, 1, 12, 12)).shape == (3, 2)


# --- convnet -----------------------------------------------------------------------------------------------


def test_the_default_convnet_is_the_511_kb_of_its_paper() -> None:
    model = model_of("convnet", CIFAR)
    assert model.layout.size == 896 + 18_496 + 3 * 36_928 + 650
    assert 4 * model.layout.size // 1024 == 511


def convolutions(
    into: int, channels: list[int], after: Callable[[], nn.Module] = nn.ReLU, pooled: int = 9
) -> nn.Module:
    """Blocks with so many channels, of which the first `pooled` halve the image."""
    blocks: list[nn.Module] = []
    for index, (before, out) in enumerate(pairwise([into, *channels])):
        blocks += [nn.Conv2d(before, out, 3, padding=1), after(), *([nn.MaxPool2d(2)] if index < pooled else [])]
    return nn.Sequential(*blocks, nn.Flatten())


def test_the_default_convnet_computes_what_torch_modules_compute() -> None:
    module = nn.Sequential(convolutions(3, [32, 64, 64, 64, 64]), nn.Linear(64, 10))
    assert_same_outputs(model_of("convnet", CIFAR), module, CIFAR, **CLOSE)


def test_a_convnet_stops_pooling_at_a_single_pixel() -> None:
    blocks = convolutions(1, [4, 5, 6, 7], pooled=3)
    module = nn.Sequential(blocks, nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 10))
    assert_same_outputs(model_of("convnet", DIGITS, channels=[4, 5, 6, 7], hidden=[9]), module, DIGITS, **CLOSE)


@pytest.mark.parametrize("activation", ["relu", "softmax"])
@pytest.mark.parametrize("channels", [[16], [16, 32], [16, 16, 32], [8, 16, 16, 32]], ids=str)
def test_small_convnets_compute_what_torch_modules_compute(activation: str, channels: list[int]) -> None:
    after = {"relu": nn.ReLU, "softmax": partial(nn.Softmax, dim=1)}[activation]
    side = 28 >> len(channels)
    module = nn.Sequential(convolutions(1, channels, after), nn.Linear(channels[-1] * side * side, 10))
    assert_same_outputs(model_of("convnet", GREY, channels=channels, activation=activation), module, GREY, **CLOSE)


def test_an_oblong_image_keeps_its_longer_side() -> None:
    model = model_of("convnet", DatasetInfo(input_shape=(2, 9), num_classes=3), channels=[5, 6])
    assert model.layout.views(model.initial(0))["fc1.weight"].shape == (3, 6 * 1 * 4)
    assert model.outputs(tensors(model.layout, model.initial(0)), torch.zeros(2, 2, 9)).shape == (2, 3)


# --- ResNet-18 ---------------------------------------------------------------------------------------------


class BasicBlock(nn.Module):
    """Written as its paper has it, apart from the normalisation."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(32, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(32, out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(into, out, 1, stride=stride, bias=False), nn.GroupNorm(32, out))

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norm1(self.conv1(maps)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.shortcut(maps))


def resnet18(channels: int) -> nn.Module:
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    stem = [nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
    blocks = [BasicBlock(*width) for width in widths]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


@pytest.mark.parametrize("info", [CIFAR, DIGITS], ids=["32", "8"])
def test_resnet18_computes_what_torch_modules_compute(info: DatasetInfo) -> None:
    assert_same_outputs(model_of("resnet18", info), resnet18(info.input_shape[0]), info, **CLOSE)


def test_resnet18_has_the_weights_of_its_form_for_small_images() -> None:
    model = model_of("resnet18", CIFAR)
    assert model.layout.size == 11_173_962
    assert set(model.layout.names) - set(model.shared) == {"fc1.weight", "fc1.bias"}
    assert len(model.layout.names) == 62


def test_a_normalisation_starts_as_the_identity_and_changes_no_other_draw() -> None:
    model = model_of("resnet18", DIGITS)
    views = model.layout.views(model.initial(9))
    assert set(views["layer2.0.shortcut.norm.weight"].tolist()) == {1.0}
    assert set(views["layer2.0.shortcut.norm.bias"].tolist()) == {0.0}
    bound = 1 / np.sqrt(64 * 9)
    weight = views["layer1.0.conv1.weight"]
    assert (np.abs(weight) <= bound * (1 + 1e-6)).all()
    assert np.abs(weight).max() > 0.98 * bound


def test_a_stage_of_resnet18_can_be_shared_by_its_name() -> None:
    model = model_of("resnet18", DIGITS, shared=["conv1", "layer1"])
    assert len(model.shared) == 1 + 2 * 2 * 3
    assert model.shared[:2] == ("conv1.weight", "layer1.0.conv1.weight")


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "smallest"),
    [("lenet5", (1, 11, 12), 12), ("lenet5", (64,), 12), ("resnet18", (1, 3, 3), 4), ("convnet", (5,), 1)],
)
def test_what_is_no_image_or_too_small_is_refused(name: str, shape: tuple[int, ...], smallest: int) -> None:
    with pytest.raises(ExperimentError, match=f"model {name} needs images, .* of at least {smallest}×{smallest}"):
        model_of(name, DatasetInfo(input_shape=shape, num_classes=10))
