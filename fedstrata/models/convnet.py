"""A convolutional network with any number of 3×3 convolutions, each with 2×2 pooling, then dense layers.

The default channels are 32, 64, 64, 64 and 64. With these channels, the model is the network of "Personalization in
Distributed tinyML Applications via Adaptive Clustered Federated Learning", with five convolutions and a dense layer. On
CIFAR-10 it has 130,826 weights, which is the 511 KB that the paper gives. Channels such as [16, 32] or [16, 16, 32]
give the small networks of "Resource-Constrained Federated Learning with Heterogeneous Labels and Models".
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from fedstrata.datasets import DatasetInfo
from fedstrata.experiment import ModelSettings
from fedstrata.models.images import image_shape
from fedstrata.models.mlp import dense, dense_layers
from fedstrata.models.model import Layer, Model

if TYPE_CHECKING:
    import torch

CHANNELS = (32, 64, 64, 64, 64)
KERNEL = 3


def convnet(settings: ModelSettings, info: DatasetInfo) -> Model:
    """Return a model with 3×3 convolutions to `channels`. An activation follows each convolution. If there are at least
    2×2 pixels, 2×2 max pooling follows too. All clusters share the convolutions.

    `settings.activation` is ReLU, or a softmax over the channels of a pixel.
    """
    channels, height, width = image_shape(info, "convnet", smallest=1)
    widths = (channels, *(CHANNELS if settings.channels is None else settings.channels))
    is_softmax = settings.activation == "softmax"
    convolutions = [
        Layer(name=f"conv{index}", shape=(out, into, KERNEL, KERNEL))
        for index, (into, out) in enumerate(pairwise(widths), 1)
    ]
    halvings = min(len(convolutions), min(height, width).bit_length() - 1)
    features = widths[-1] * (height >> halvings) * (width >> halvings)
    dense_part = dense_layers((features, *(settings.hidden or ()), info.outputs))
    names = [layer.name for layer in dense_part]

    def outputs(weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor") -> "torch.Tensor":
        from torch.nn.functional import conv2d, max_pool2d

        maps = inputs.reshape(-1, channels, height, width)
        for index, layer in enumerate(convolutions):
            name = layer.name
            maps = conv2d(maps, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=KERNEL // 2)
            maps = maps.softmax(1) if is_softmax else maps.relu()
            maps = max_pool2d(maps, 2) if index < halvings else maps
        return dense(weights, names, maps.flatten(1))

    shared = [layer.name for layer in convolutions]
    return Model.of_layers([*convolutions, *dense_part], shared=shared, outputs=outputs)
