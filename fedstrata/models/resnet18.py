"""ResNet-18 for small images, with group normalisation.

Source: K. He, X. Zhang, S. Ren and J. Sun, Deep Residual Learning for Image Recognition, 2016. The first convolution is
3×3, without pooling after it, as is usual for 32×32 pixels. Group normalisation (Y. Wu and K. He, Group Normalization,
2018) replaces batch normalisation. The reason is that running statistics are not weights, and differ between devices
with different data.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedstrata.datasets import DatasetInfo
from fedstrata.experiment import ModelSettings
from fedstrata.models.images import image_shape
from fedstrata.models.mlp import dense, dense_layers
from fedstrata.models.model import Layer, Model, Normalisation

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]

STAGES = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2
GROUPS = 32
SHARED = ("conv1", "norm1", "layer1", "layer2", "layer3", "layer4")


@dataclass(frozen=True, kw_only=True)
class Block:
    """Describe a block of two 3×3 convolutions and a shortcut. If the shape changes, the shortcut is a 1×1
    convolution.
    """

    name: str
    channels_in: int
    channels: int
    stride: int

    @property
    def has_projection(self) -> bool:
        """Return whether the shortcut is a convolution."""
        return self.stride != 1 or self.channels_in != self.channels

    @property
    def layers(self) -> list[Layer | Normalisation]:
        """The layers of the block, in torchvision's order."""
        layers = _convolution(f"{self.name}.conv1", f"{self.name}.norm1", self.channels_in, self.channels, 3)
        layers += _convolution(f"{self.name}.conv2", f"{self.name}.norm2", self.channels, self.channels, 3)
        if self.has_projection:
            layers += _convolution(
                f"{self.name}.shortcut.conv", f"{self.name}.shortcut.norm", self.channels_in, self.channels, 1
            )
        return layers

    def outputs(self, weights: "Weights", maps: "torch.Tensor") -> "torch.Tensor":
        """Return the block's outputs for inputs of shape (n, channels_in, height, width)."""
        name = self.name
        inner = _normalised(weights, f"{name}.conv1", f"{name}.norm1", maps, stride=self.stride).relu()
        inner = _normalised(weights, f"{name}.conv2", f"{name}.norm2", inner)
        if self.has_projection:
            maps = _normalised(weights, f"{name}.shortcut.conv", f"{name}.shortcut.norm", maps, stride=self.stride)
        return (inner + maps).relu()


def resnet18(settings: ModelSettings, info: DatasetInfo) -> Model:
    """Return a ResNet-18 with group normalisation instead of batch normalisation, so the model has no running
    statistics. All clusters share all layers except the dense layer.
    """
    image = image_shape(info, "resnet18", smallest=4)
    blocks = list(_blocks())
    dense_part = dense_layers((STAGES[-1], *(settings.hidden or ()), info.outputs))
    names = [layer.name for layer in dense_part]
    stem = _convolution("conv1", "norm1", image[0], STAGES[0], 3)

    def outputs(weights: "Weights", inputs: "torch.Tensor") -> "torch.Tensor":
        maps = _normalised(weights, "conv1", "norm1", inputs.reshape(-1, *image)).relu()
        for block in blocks:
            maps = block.outputs(weights, maps)
        return dense(weights, names, maps.mean((2, 3)))

    layers = [*stem, *(layer for block in blocks for layer in block.layers), *dense_part]
    return Model.of_layers(layers, shared=SHARED, outputs=outputs)


def _blocks() -> Iterator[Block]:
    channels_in = STAGES[0]
    for stage, channels in enumerate(STAGES, 1):
        for index in range(BLOCKS_PER_STAGE):
            stride = 2 if stage > 1 and index == 0 else 1
            yield Block(name=f"layer{stage}.{index}", channels_in=channels_in, channels=channels, stride=stride)
            channels_in = channels


def _convolution(name: str, norm: str, into: int, out: int, kernel: int) -> list[Layer | Normalisation]:
    shape = (out, into, kernel, kernel)
    return [Layer(name=name, shape=shape, has_bias=False), Normalisation(name=norm, channels=out)]


def _normalised(weights: "Weights", name: str, norm: str, maps: "torch.Tensor", stride: int = 1) -> "torch.Tensor":
    """Apply a convolution and its group normalisation to images, and return the result. With stride 1 the convolution
    keeps the size of the images. With stride 2 it halves their size.
    """
    from torch.nn.functional import conv2d, group_norm

    weight = weights[f"{name}.weight"]
    maps = conv2d(maps, weight, stride=stride, padding=weight.shape[-1] // 2)
    return group_norm(maps, GROUPS, weights[f"{norm}.weight"], weights[f"{norm}.bias"])
