"""A multilayer perceptron: dense layers fc1, fc2, … with ReLU between them."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from fedstrata.datasets import DatasetInfo
from fedstrata.experiment import ModelSettings
from fedstrata.models.model import Layer, Model

if TYPE_CHECKING:
    import torch

HIDDEN = (32,)  # sizes of the hidden layers; with Fashion-MNIST the model is 784-32-10, as in Ali & Arafa


def mlp(settings: ModelSettings, info: DatasetInfo) -> Model:
    """Return a model with dense layers `fc1`, `fc2`, … and ReLU between them. By default there is one hidden layer of
    32 units. All clusters share `fc1`, unless it is the last layer.
    """
    hidden = HIDDEN if settings.hidden is None else settings.hidden
    widths = (math.prod(info.input_shape), *hidden, info.outputs)
    layers = dense_layers(widths)
    names = [layer.name for layer in layers]

    def outputs(weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor") -> "torch.Tensor":
        return dense(weights, names, inputs.flatten(1))

    return Model.of_layers(layers, shared=names[:-1][:1], outputs=outputs, dense=widths)


def dense_layers(widths: Sequence[int]) -> list[Layer]:
    """Return the layers fc1, fc2, … from each width to the next."""
    return [Layer(name=f"fc{index}", shape=(out, into)) for index, (into, out) in enumerate(pairwise(widths), 1)]


def dense(weights: "Mapping[str, torch.Tensor]", names: Sequence[str], features: "torch.Tensor") -> "torch.Tensor":
    """Apply the named layers to features of shape (n, d), and return the result. ReLU follows each layer except the
    last.
    """
    from torch.nn.functional import linear, relu

    for name in names[:-1]:
        features = relu(linear(features, weights[f"{name}.weight"], weights[f"{name}.bias"]))
    return linear(features, weights[f"{names[-1]}.weight"], weights[f"{names[-1]}.bias"])
