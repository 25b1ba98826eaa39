"""The parts of convolutional models: images that are large enough, and two convolutions with pooling."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedstrata.datasets import DatasetInfo
from fedstrata.errors import ExperimentError
from fedstrata.models.model import Layer

if TYPE_CHECKING:
    import torch

CONVOLUTIONS = ("conv1", "conv2")
UNPADDED_FROM = 32  # shorter side, in pixels
SMALLEST = 4  # shorter side that leaves a pixel after two poolings


@dataclass(frozen=True, kw_only=True)
class TwoConvolutions:
    """Hold two convolutions of images, with ReLU and 2×2 max pooling after each.

    Images with a shorter side below 32 are padded at each convolution, so that it keeps their size.
    """

    image: tuple[int, int, int]
    channels: tuple[int, int]
    kernel: int

    @property
    def layers(self) -> list[Layer]:
        """The layers of the convolutions."""
        return [
            Layer(name=name, shape=(out, into, self.kernel, self.kernel))
            for name, into, out in zip(CONVOLUTIONS, (self.image[0], self.channels[0]), self.channels, strict=True)
        ]

    @property
    def features(self) -> int:
        """The number of features of an image."""
        height, width = self.image[1:]
        for _ in CONVOLUTIONS:
            height, width = ((side + 2 * self.padding - self.kernel + 1) // 2 for side in (height, width))
        return self.channels[1] * height * width

    @property
    def padding(self) -> int:
        """The padding at each side, in pixels."""
        return 0 if min(self.image[1:]) >= UNPADDED_FROM else self.kernel // 2

    def outputs(self, weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor") -> "torch.Tensor":
        """Return the features of images, shape (n, features)."""
        from torch.nn.functional import conv2d, max_pool2d

        maps = inputs.reshape(-1, *self.image)
        for name in CONVOLUTIONS:
            maps = conv2d(maps, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=self.padding)
            maps = max_pool2d(maps.relu(), 2)
        return maps.flatten(1)


def image_shape(info: DatasetInfo, model: str, *, smallest: int) -> tuple[int, int, int]:
    """Return (channels, height, width) of the data set's examples. Images without channels are grey.

    Raises:
        ExperimentError: the examples are no images, or their shorter side is below `smallest` pixels.
    """
    match info.input_shape:
        case (height, width) if min(height, width) >= smallest:
            return (1, height, width)
        case (channels, height, width) if min(height, width) >= smallest:
            return (channels, height, width)
    raise ExperimentError(
        f"model {model} takes images, (channels, height, width) or (height, width) of at least {smallest}×{smallest} "
        f"pixels, and the data set's examples have shape {info.input_shape}; choose model mlp or other data"
    )
