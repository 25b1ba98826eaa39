"""The convolutional network of Ali & Arafa: two 5×5 convolutions with pooling, then dense layers.

If the shorter side of the images is below 32, each convolution pads its inputs by 2 pixels and so keeps their size.
Larger images are not padded, as in LeNet. Both convolutions with their pooling reduce 32×32 pixels to 5×5, 28×28 to
7×7, and 8×8 to 2×2.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedstrata.datasets import DatasetInfo
from fedstrata.experiment import ModelSettings
from fedstrata.models.images import CONVOLUTIONS, SMALLEST, image_shape, two_convolutions
from fedstrata.models.mlp import dense, dense_layers
from fedstrata.models.model import Model

if TYPE_CHECKING:
    import torch

HIDDEN = (120, 84)


def cnn(settings: ModelSettings, info: DatasetInfo) -> Model:
    """Return a model with two 5×5 convolutions to 6 and 16 channels, and dense layers of 120 and 84 units. ReLU and 2×2
    max pooling follow each convolution. All clusters share the convolutions.
    """
    image = image_shape(info, "cnn", smallest=SMALLEST)
    convolutions, size, features_of = two_convolutions(image, channels=(6, 16), kernel=5)
    hidden = HIDDEN if settings.hidden is None else settings.hidden
    dense_part = dense_layers((size, *hidden, info.outputs))
    names = [layer.name for layer in dense_part]

    def outputs(weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor") -> "torch.Tensor":
        return dense(weights, names, features_of(weights, inputs))

    return Model.of_layers([*convolutions, *dense_part], shared=CONVOLUTIONS, outputs=outputs)
