"""Fashion-MNIST as ten cameras would see it, and a small residual network with batch normalisation.

Each camera has a contrast and a brightness of its own, drawn from its number. So devices have the same labels and
different statistics of pixels, the setting of FedBN (Li et al., ICLR 2021).
"""

from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import relu

from fedstrata.datasets import Dataset, Examples, fashion_mnist
from fedstrata.experiment import DataSettings

CAMERAS = 10
TRAIN, TEST = 300, 200  # examples per camera


def load(settings: Any) -> Dataset:
    """Return examples of each camera, in the column `camera`."""
    whole = fashion_mnist.load(DataSettings(name="fashion-mnist", folder=settings.folder))
    return Dataset(train=_seen(whole.train, TRAIN), test=_seen(whole.test, TEST), num_classes=10)


def _seen(examples: Any, each: int) -> Examples:
    order = np.random.default_rng(0).permutation(len(examples))[: CAMERAS * each]
    taken = examples.take(order)
    camera = np.repeat(np.arange(CAMERAS), each)
    inputs = np.concatenate([_camera(number, taken.inputs[camera == number]) for number in range(CAMERAS)])
    return Examples(inputs=inputs, labels=taken.labels, columns={"camera": camera})


def _camera(number: int, images: np.ndarray) -> np.ndarray:
    """Return images as a camera sees them: contrast .1 to 1, brightness -.5 to .5."""
    rng = np.random.default_rng([1, number])
    contrast, brightness = rng.uniform(0.1, 1), rng.uniform(-0.5, 0.5)
    return (contrast * images + brightness).astype(np.float32)


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's outputs."""
        hidden = relu(self.norm1(self.conv1(inputs)))
        return relu(self.norm2(self.conv2(hidden)) + self.short(inputs))


class ResNet(nn.Module):
    """A residual network with three blocks."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.blocks = nn.Sequential(
            Block(channels, channels, 1), Block(channels, 2 * channels, 2), Block(2 * channels, 4 * channels, 2)
        )
        self.head = nn.Linear(4 * channels, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of shape (n, 10)."""
        hidden = self.blocks(relu(self.norm(self.conv(inputs))))
        return self.head(hidden.mean((2, 3)))
