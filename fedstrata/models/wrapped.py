"""A torch module around a model that is not a torch module."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn


class Wrapped(nn.Module):
    """Compute a model's outputs as a torch module. The parameters of the torch module are the model's weights, with the
    names of the model's tensors.
    """

    def __init__(self, outputs: Callable[..., Tensor], weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._outputs = outputs
        for name, values in weights.items():
            *layers, leaf = name.split(".")
            place: nn.Module = self
            for layer in layers:
                if layer not in place._modules:
                    place.add_module(layer, nn.Module())
                place = place.get_submodule(layer)
            place.register_parameter(leaf, nn.Parameter(values))

    def forward(self, inputs: Tensor, **more: Tensor) -> Tensor:
        """Return the model's outputs for these inputs."""
        return self._outputs(dict(self.named_parameters()), inputs, **more)
