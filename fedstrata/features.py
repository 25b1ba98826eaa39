"""The feature map Φ of a profile: from a device's inputs to the matrix whose spectrum it takes."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets import DatasetInfo
from fedstrata.errors import PluginError
from fedstrata.experiment import MethodSettings
from fedstrata.plugins import describe, load_plugin

FeatureMap = Callable[[NDArray[np.float32]], NDArray[np.float64]]


def feature_dim(settings: MethodSettings, info: DatasetInfo) -> int:
    """d, how many features Φ gives an example: all values of an input for raw, what the file says for own."""
    return settings.feature_dim or math.prod(info.input_shape)


def feature_map(settings: MethodSettings) -> FeatureMap:
    """Φ of the experiment, from inputs (n, *input_shape) to finite features (n, d).

    `raw` takes the inputs as they are; `module:function` names one's own, called with the inputs.

    Raises:
        PluginError: the own function is missing; or, when Φ is called, fails or gives something else.
    """
    if settings.features == "raw":
        return _raw
    own = load_plugin(settings.features, "feature map")

    def checked(inputs: NDArray[np.float32]) -> NDArray[np.float64]:
        try:
            features = np.asarray(own(inputs), dtype=np.float64)
        except Exception as error:
            raise PluginError(f"feature map {settings.features} failed with {describe(error)}") from error
        _check(features, settings, num_examples=len(inputs))
        return features

    return checked


def _raw(inputs: NDArray[np.float32]) -> NDArray[np.float64]:
    return inputs.reshape(len(inputs), math.prod(inputs.shape[1:])).astype(np.float64)


def _check(features: NDArray[np.float64], settings: MethodSettings, *, num_examples: int) -> None:
    name, expected = settings.features, (num_examples, settings.feature_dim)
    if features.shape != expected:
        raise PluginError(
            f"feature map {name} must give an array of shape {expected}, one row an example and "
            f"method.feature_dim columns, not {features.shape}"
        )
    if not np.isfinite(features).all():
        raise PluginError(f"feature map {name} gave NaN or Inf; features must be finite numbers")
