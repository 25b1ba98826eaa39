"""The convolutional network of FedTSDP: two 3×3 convolutions and two dense layers, with dropout between them.

Source: H. Zhu, Y. Fan and Z. Xie, Federated Two Stage Decoupling With Adaptive Personalization Layers, 2023. The paper
gives 32 and 64 channels, 512 units, and dropout of 0.25 and 0.5. It does not mention pooling or padding. Here 2×2 max
pooling follows each convolution. If the shorter side of the images is below 32, each convolution pads its inputs by 1
pixel.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fedstrata.datasets import DatasetInfo
from fedstrata.experiment import ModelSettings
from fedstrata.models.images import CONVOLUTIONS, SMALLEST, image_shape, two_convolutions
from fedstrata.models.mlp import dense_layers
from fedstrata.models.model import Model

if TYPE_CHECKING:
    import numpy as np
    import torch

    Drop = Callable[[torch.Tensor, float], torch.Tensor]

HIDDEN = (512,)
OF_CONVOLUTIONS, OF_HIDDEN = 0.25, 0.5  # shares of values that are dropped


def dropout_cnn(settings: ModelSettings, info: DatasetInfo) -> Model:
    """Return a model with two 3×3 convolutions to 32 and 64 channels, and a dense layer of 512 units. Training drops a
    quarter of the convolutions' outputs, and half of the outputs of this dense layer. All clusters share the
    convolutions.
    """
    image = image_shape(info, "dropout_cnn", smallest=SMALLEST)
    convolutions, size, features_of = two_convolutions(image, channels=(32, 64), kernel=3)
    hidden = HIDDEN if settings.hidden is None else settings.hidden
    dense_part = dense_layers((size, *hidden, info.outputs))
    names = [layer.name for layer in dense_part]

    def outputs(weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor", drop: "Drop") -> "torch.Tensor":
        from torch.nn.functional import linear

        features = drop(features_of(weights, inputs), OF_CONVOLUTIONS)
        for name in names[:-1]:
            features = linear(features, weights[f"{name}.weight"], weights[f"{name}.bias"]).relu()
            features = drop(features, OF_HIDDEN)
        return linear(features, weights[f"{names[-1]}.weight"], weights[f"{names[-1]}.bias"])

    return Model.of_layers(
        [*convolutions, *dense_part],
        shared=CONVOLUTIONS,
        outputs=lambda weights, inputs: outputs(weights, inputs, lambda features, _: features),
        dropping=lambda weights, inputs, rng: outputs(
            weights, inputs, lambda features, rate: dropped(features, rate, rng)
        ),
    )


def dropped(features: "torch.Tensor", rate: float, rng: "np.random.Generator") -> "torch.Tensor":
    """Return the features after dropout. Each feature is set to 0 with probability `rate`, and otherwise divided by 1 −
    rate, so that the mean does not change.
    """
    import numpy as np
    import torch

    kept = rng.random(tuple(features.shape), np.float32) >= rate
    return features * features.new_tensor(kept, dtype=torch.bool) / (1 - rate)
