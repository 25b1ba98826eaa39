"""Parts that several convolutional models use: a check of the images' shape, and two convolutions with pooling."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fedstrata.datasets import DatasetInfo
from fedstrata.errors import ExperimentError
from fedstrata.models.model import Layer

if TYPE_CHECKING:
    import torch

CONVOLUTIONS = ("conv1", "conv2")
UNPADDED_FROM = 32  # images with a shorter side below this number of pixels are padded
SMALLEST = 4  # least pixels of the shorter side that leave a pixel after two poolings


def two_convolutions(
    image: tuple[int, int, int], channels: tuple[int, int], kernel: int
) -> "tuple[list[Layer], int, Callable[[Mapping[str, torch.Tensor], torch.Tensor], torch.Tensor]]":
    """Return the layers of two convolutions, the number of features of an image, and the function that computes these
    features.

    ReLU and 2×2 max pooling follow each convolution. If the shorter side of the images is below 32, each convolution
    pads its inputs.
    """
    padding = 0 if min(image[1:]) >= UNPADDED_FROM else kernel // 2
    layers = [
        Layer(name=name, shape=(out, into, kernel, kernel))
        for name, into, out in zip(CONVOLUTIONS, (image[0], channels[0]), channels, strict=True)
    ]
    height, width = image[1:]
    for _ in CONVOLUTIONS:
        height, width = ((side + 2 * padding - kernel + 1) // 2 for side in (height, width))

    def features(weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor") -> "torch.Tensor":
        from torch.nn.functional import conv2d, max_pool2d

        maps = inputs.reshape(-1, *image)
        for name in CONVOLUTIONS:
            maps = conv2d(maps, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=padding)
            maps = max_pool2d(maps.relu(), 2)
        return maps.flatten(1)

    return layers, channels[1] * height * width, features


def image_shape(info: DatasetInfo, model: str, *, smallest: int) -> tuple[int, int, int]:
    """Return (channels, height, width) of the data set's examples. Images without an axis for channels are grey.

    Raises:
        ExperimentError: the examples are not images, or their shorter side is below `smallest` pixels.
    """
    match info.input_shape:
        case (height, width) if min(height, width) >= smallest:
            return (1, height, width)
        case (channels, height, width) if min(height, width) >= smallest:
            return (channels, height, width)
    raise ExperimentError(
        f"model {model} needs images, (channels, height, width) or (height, width), of at least {smallest}×{smallest} "
        f"pixels, but the data set's examples have shape {info.input_shape}; choose model mlp or other data"
    )
