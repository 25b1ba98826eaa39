"""Φ of a ResNet-18 whose weights come from a file: the arithmetic of torch's modules, and what files are refused."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedstrata.errors import DataError
from fedstrata.methods.profiles import resnet_features
from fedstrata.methods.profiles.resnet_features import resnet18_features


class BasicBlock(nn.Module):
    """With torchvision's names."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample: nn.Module | None = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        inner = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(maps)))))
        return torch.relu(inner + (maps if self.downsample is None else self.downsample(maps)))


class ResNet18(nn.Module):
    """With torchvision's names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.fc = nn.Linear(512, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.maxpool(torch.relu(self.bn1(self.conv1(images))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            maps = stage(maps)
        return maps.mean((2, 3))


@pytest.fixture(scope="module")
def network() -> ResNet18:
    """Drawn, with running statistics that matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = ResNet18().eval()
        for name, buffer in module.named_buffers():
            if "running_mean" in name:
                buffer.uniform_(-0.1, 0.1)
            elif "running_var" in name:
                buffer.uniform_(0.1, 0.5)
        for name, parameter in module.named_parameters():
            if "bn" in name or "downsample.1" in name:
                parameter.detach().uniform_(0.2, 1)
    return module


@pytest.fixture(scope="module")
def weights(network: ResNet18, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resnet18") / "weights.pth"
    torch.save(network.state_dict(), path)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def images(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(2).random(shape, np.float32)


def expected(network: ResNet18, colour: np.ndarray[Any, np.dtype[np.float32]]) -> torch.Tensor:
    mean = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)
    with torch.inference_mode():
        result: torch.Tensor = network((torch.tensor(colour) - mean) / deviation)
    return result


def test_features_are_the_pooled_outputs_of_the_last_convolutions(network: ResNet18, weights: Path) -> None:
    inputs = images(70, 3, 8, 8)  # more than a batch
    found = resnet18_features(weights, sha256=sha256(weights))(inputs)
    assert found.dtype == np.float64
    assert found.shape == (70, 512)
    torch.testing.assert_close(torch.tensor(found).float(), expected(network, inputs), rtol=1e-4, atol=1e-4)
    assert found.std(0).max() > 0.01


@pytest.mark.parametrize("shape", [(3, 36, 36), (3, 1, 36, 36)])  # the last convolution gives 2 x 2 pixels
def test_grey_images_count_as_three_equal_colours(network: ResNet18, weights: Path, shape: tuple[int, ...]) -> None:
    inputs = images(*shape)
    colour = np.repeat(inputs.reshape(3, 1, 36, 36), 3, axis=1)
    found = resnet18_features(weights, sha256=sha256(weights))(inputs)
    torch.testing.assert_close(torch.tensor(found).float(), expected(network, colour), rtol=1e-4, atol=1e-4)


def test_what_is_no_image_has_no_features(weights: Path) -> None:
    features = resnet18_features(weights, sha256=sha256(weights))
    for shape in ((2, 64), (2, 2, 8, 8)):
        with pytest.raises(DataError, match="needs images with one or three channels, not shape"):
            features(images(*shape))


def test_weights_that_are_missing_or_others_than_expected_are_refused(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*: No such file or directory; put the weights there"):
        resnet18_features(tmp_path / "absent.pth", sha256="")
    with pytest.raises(DataError, match=f"its SHA-256 is {sha256(weights)}, not {'0' * 64}; replace the file"):
        resnet18_features(weights, sha256="0" * 64)


class Payload:
    """What a pickle would execute."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


def test_a_file_that_wants_something_executed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evil.pth"
    torch.save({"conv1.weight": Payload()}, path)
    with pytest.raises(DataError, match="cannot use") as raised:
        resnet18_features(path, sha256=sha256(path))
    assert "\n" not in str(raised.value)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [[1, 2], {"conv1.weight": torch.zeros(64, 3, 3, 3)}, {"conv1.weight": "text"}])
def test_a_file_that_holds_no_resnet18_is_refused(tmp_path: Path, content: object) -> None:
    path = tmp_path / "other.pth"
    torch.save(content, path)
    with pytest.raises(DataError, match=r"it must have a tensor conv1\.weight of float32 and shape \(64, 3, 7, 7\)"):
        resnet18_features(path, sha256=sha256(path))


def test_the_published_weights_are_looked_for_in_the_folder_of_all_data(
    network: ResNet18, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resnet_features._published.cache_clear()
    monkeypatch.delenv("FEDSTRATA_DATA", raising=False)
    with pytest.raises(DataError, match=r"put resnet18-f37072fd\.pth into \$FEDSTRATA_DATA/resnet18"):
        resnet_features.imagenet(images(1, 3, 8, 8))
    (tmp_path / "resnet18").mkdir()
    (tmp_path / "resnet18" / "resnet18-f37072fd.pth").write_bytes(weights.read_bytes())
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path))
    monkeypatch.setattr(resnet_features, "PUBLISHED_SHA256", sha256(weights))
    found = resnet_features.imagenet(images(2, 3, 8, 8))
    resnet_features._published.cache_clear()
    torch.testing.assert_close(torch.tensor(found).float(), expected(network, images(2, 3, 8, 8)), rtol=1e-4, atol=1e-4)
