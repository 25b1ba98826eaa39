"""LeNet-5 of Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, Gradient-Based Learning Applied to Document Recognition,
1998.

The model has tanh and average pooling, as in the paper. It leaves out three outdated parts: trainable pooling
coefficients, partial connections between channels, and radial basis functions at the end.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedstrata.datasets import DatasetInfo
from fedstrata.experiment import ModelSettings
from fedstrata.models.images import CONVOLUTIONS, UNPADDED_FROM, image_shape
from fedstrata.models.mlp import dense_layers
from fedstrata.models.model import Layer, Model

if TYPE_CHECKING:
    import torch

HIDDEN = (120, 84)
CHANNELS = (6, 16)
KERNEL = 5
SMALLEST = 12  # least pixels of the shorter side that leave a pixel after both poolings


def lenet5(settings: ModelSettings, info: DatasetInfo) -> Model:
    """Return a model with two 5×5 convolutions to 6 and 16 channels, and dense layers of 120 and 84 units. Tanh and 2×2
    average pooling follow each convolution. Images must have at least 12×12 pixels. All clusters share the
    convolutions.
    """
    channels, *sides = image_shape(info, "lenet5", smallest=SMALLEST)
    padding = 0 if min(sides) >= UNPADDED_FROM else KERNEL // 2
    height, width = (((side + 2 * padding - KERNEL + 1) // 2 - KERNEL + 1) // 2 for side in sides)
    hidden = HIDDEN if settings.hidden is None else settings.hidden
    dense_part = dense_layers((CHANNELS[1] * height * width, *hidden, info.outputs))
    convolutions = [
        Layer(name="conv1", shape=(CHANNELS[0], channels, KERNEL, KERNEL)),
        Layer(name="conv2", shape=(CHANNELS[1], CHANNELS[0], KERNEL, KERNEL)),
    ]
    names = [layer.name for layer in dense_part]

    def outputs(weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor") -> "torch.Tensor":
        from torch.nn.functional import avg_pool2d, conv2d, linear

        maps = inputs.reshape(-1, channels, *sides)
        for name, pixels in zip(CONVOLUTIONS, (padding, 0), strict=True):
            maps = conv2d(maps, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=pixels)
            maps = avg_pool2d(maps.tanh(), 2)
        features = maps.flatten(1)
        for name in names[:-1]:
            features = linear(features, weights[f"{name}.weight"], weights[f"{name}.bias"]).tanh()
        return linear(features, weights[f"{names[-1]}.weight"], weights[f"{names[-1]}.bias"])

    return Model.of_layers([*convolutions, *dense_part], shared=CONVOLUTIONS, outputs=outputs)
