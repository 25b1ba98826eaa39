"""The convolutional network of Ali & Arafa: two 5×5 convolutions with pooling, then dense layers.

If the shorter side of the images is below 32, each convolution pads them by 2 and so keeps their size. Larger images
are not padded, as in LeNet. After both convolutions, 32×32 gives 5×5, 28×28 gives 7×7, and 8×8 gives 2×2.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedstrata.datasets import DatasetInfo
from fedstrata.experiment import ModelSettings
from fedstrata.models.images import image_shape
from fedstrata.models.mlp import dense, dense_layers
from fedstrata.models.model import Layer, Model

if TYPE_CHECKING:
    import torch

HIDDEN = (120, 84)
CHANNELS = (6, 16)
KERNEL = 5
CONVOLUTIONS = ("conv1", "conv2")
UNPADDED_FROM = 32  # shorter side, in pixels
SMALLEST = 4  # shorter side that leaves a pixel after two poolings


def cnn(settings: ModelSettings, info: DatasetInfo) -> Model:
    """Return a model with two 5×5 convolutions to 6 and 16 channels, each followed by ReLU and 2×2 max pooling, and
    dense layers of 120 and 84. All clusters share the convolutions.
    """
    image = image_shape(info, "cnn", smallest=SMALLEST)
    padding = 0 if min(image[1:]) >= UNPADDED_FROM else KERNEL // 2
    flattened = CHANNELS[1] * _pooled_twice(image[1], padding) * _pooled_twice(image[2], padding)
    hidden = HIDDEN if settings.hidden is None else settings.hidden
    convolutions = [
        Layer(name=name, shape=(out, into, KERNEL, KERNEL))
        for name, into, out in zip(CONVOLUTIONS, (image[0], CHANNELS[0]), CHANNELS, strict=True)
    ]
    dense_part = dense_layers((flattened, *hidden, info.outputs))
    names = [layer.name for layer in dense_part]

    def outputs(weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor") -> "torch.Tensor":
        maps = _convolved(weights, inputs.reshape(-1, *image), padding)
        return dense(weights, names, maps.flatten(1))

    return Model.of_layers([*convolutions, *dense_part], shared=CONVOLUTIONS, outputs=outputs)


def _convolved(weights: "Mapping[str, torch.Tensor]", images: "torch.Tensor", padding: int) -> "torch.Tensor":
    from torch.nn.functional import conv2d, max_pool2d, relu

    for name in CONVOLUTIONS:
        maps = conv2d(images, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=padding)
        images = max_pool2d(relu(maps), 2)
    return images


def _pooled_twice(side: int, padding: int) -> int:
    for _ in CONVOLUTIONS:
        side = (side + 2 * padding - KERNEL + 1) // 2
    return side
