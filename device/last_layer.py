"""The features of examples: the inputs of a model's last layer."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from fedstrata.errors import PluginError
from fedstrata.methods import ForwardPass
from fedstrata.models import Model


class OutputsWithFeatures:
    """Compute a model's outputs with a given function, and keep the outputs and features of the last call. Raises
    PluginError if the model's last layer is not dense.
    """

    features: torch.Tensor
    outputs: torch.Tensor

    def __init__(self, model: Model, outputs: Callable[..., torch.Tensor]) -> None:
        if not model.last_weight:
            raise PluginError(f"the last layer of the model is not dense: it has {', '.join(model.last_layer)}")
        self._last = model.last_weight
        self._computed = outputs

    def __call__(self, weights: Mapping[str, torch.Tensor], inputs: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        """Return the outputs.

        Raises:
            PluginError: the model computes its last layer without `linear`, or more than once.
        """
        with _LinearLayer(weights[self._last]) as layer:
            self.outputs = self._computed(weights, inputs, **more)
        if len(layer.inputs) != 1:
            raise PluginError(
                f"the model uses {self._last} in {len(layer.inputs)} calls of torch.nn.functional.linear; the method "
                "needs the inputs of its last layer, so use the weight there once, or choose another method"
            )
        (self.features,) = layer.inputs
        return self.outputs

    def features_of(
        self, weights: Mapping[str, torch.Tensor], inputs: torch.Tensor, **more: torch.Tensor
    ) -> torch.Tensor:
        """Return the features of these inputs. Raises the same errors as `__call__`."""
        self(weights, inputs, **more)
        return self.features

    def last_pass(self, targets: torch.Tensor) -> ForwardPass:
        """Return the features and outputs of the last call, and `targets`, in one object."""
        return ForwardPass(features=self.features, outputs=self.outputs, targets=targets)


class _LinearLayer(TorchFunctionMode):
    """Note the inputs of the dense layer with this weight."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self._weight = weight
        self.inputs: list[torch.Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is linear and len(args) > 1 and args[1] is self._weight:
            self.inputs.append(args[0])
        return func(*args, **(kwargs or {}))
