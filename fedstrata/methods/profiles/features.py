"""The feature map Φ of a profile, which turns a device's inputs into a matrix of features."""

import math
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from fedstrata.datasets.rows import unmasked
from fedstrata.errors import PluginError
from fedstrata.experiment.sections import MethodSettings, known_or_own
from fedstrata.plugins import load_plugin, or_failed

FeatureMap = Callable[[NDArray[np.float32]], NDArray[np.float64]]


FEATURE_MAPS = ("raw",)


class FeatureOptions(MethodSettings):
    """Hold the options of methods that describe a device's data by features Φ."""

    features: str = "raw"
    """Feature map Φ: `raw` uses the inputs unchanged, and `module:function` names own code."""
    feature_dim: int | None = Field(default=None, ge=1, le=1 << 20)
    """Number d of features of an example; it is required if `features` names own code, and refused otherwise."""

    @field_validator("features")
    @classmethod
    def _known_features(cls, value: str) -> str:
        return known_or_own(value, FEATURE_MAPS, "feature map")

    @model_validator(mode="after")
    def _described(self) -> Self:
        is_own = ":" in self.features
        if is_own and self.feature_dim is None:
            raise ValueError(f"features {self.features} needs feature_dim, the number of features per example; add it")
        if not is_own and self.feature_dim is not None:
            raise ValueError(
                f"features {self.features} has as many features as an example has values; remove feature_dim"
            )
        return self


def feature_dim(options: FeatureOptions, input_shape: Sequence[int]) -> int:
    """Return d, the number of features per example. For `raw`, d is the number of values in an input. For code of the
    user, d is the option `feature_dim`.
    """
    return options.feature_dim or math.prod(input_shape)


def feature_map(settings: FeatureOptions) -> FeatureMap:
    """Return the map Φ from inputs (n, *input_shape) to finite features (n, d).

    `raw` returns the inputs unchanged. `module:function` names a function of the user, which is called with the inputs.

    Raises:
        PluginError: the user's function is missing. A later call of Φ also raises PluginError if the user's function
            fails, or returns anything but finite features of this shape.
    """
    if settings.features == "raw":
        return _raw
    own = load_plugin(settings.features, "feature map")

    def checked(inputs: NDArray[np.float32]) -> NDArray[np.float64]:
        with or_failed(f"feature map {settings.features} failed with", own):
            features = np.asarray(unmasked("features", own(inputs)), dtype=np.float64)
        _check(features, settings, num_examples=len(inputs))
        return features

    return checked


def _raw(inputs: NDArray[np.float32]) -> NDArray[np.float64]:
    return inputs.reshape(len(inputs), math.prod(inputs.shape[1:])).astype(np.float64)


def _check(features: NDArray[np.float64], settings: FeatureOptions, *, num_examples: int) -> None:
    name, expected = settings.features, (num_examples, settings.feature_dim)
    if features.shape != expected:
        raise PluginError(
            f"feature map {name} must return an array of shape {expected}, with one row per example and "
            f"method.feature_dim columns, not {features.shape}"
        )
    if not np.isfinite(features).all():
        raise PluginError(f"feature map {name} returned NaN or Inf; features must be finite numbers")
