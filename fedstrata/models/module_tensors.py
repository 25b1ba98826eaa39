"""The tensors of a torch module, by kind.

A module has four kinds of tensors. Parameters that train, and statistics (float32 buffers, such as the means of batch
normalisation), are tensors of the model. Frozen parameters and all other buffers are not tensors of the model, and are
never sent.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedstrata.errors import ExperimentError
from fedstrata.models.model import is_of_layer
from fedstrata.models.weights_file import WeightsFile
from fedstrata.tensors import Flat, Layout
from fedstrata.tensors.processor import read

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """State which tensors of a module are frozen, in addition to parameters with `requires_grad=False`. Also name the
    file from which tensors get their values, if there is one.
    """

    freeze: tuple[str, ...] = ()
    keeps_statistics: bool = False  # all statistics keep their initial values
    weights: WeightsFile | None = None  # values of frozen tensors, and initial values of others

    def is_frozen(self, name: str) -> bool:
        """Return whether a pattern in `freeze` names the tensor or its layer."""
        return any(is_of_layer(name, pattern) for pattern in self.freeze)


class ModuleTensors:
    """Hold the tensors of one module by name and kind. Buffers with `persistent=False` are left out."""

    def __init__(self, module: "torch.nn.Module", kinds: Kinds) -> None:
        from torch import nn

        self._kinds = kinds
        persistent = module.state_dict().keys()
        parameters = dict(module.named_parameters())
        buffers = {name: tensor for name, tensor in module.named_buffers() if name in persistent}
        floating = {name: tensor for name, tensor in buffers.items() if tensor.is_floating_point()}
        self.all = {**parameters, **buffers}
        self.training = {
            name: tensor for name, tensor in parameters.items() if tensor.requires_grad and not kinds.is_frozen(name)
        }
        self.frozen = {name: tensor for name, tensor in parameters.items() if name not in self.training}
        self.frozen_statistics = [name for name in floating if kinds.keeps_statistics or kinds.is_frozen(name)]
        self.statistics = {name: tensor for name, tensor in floating.items() if name not in self.frozen_statistics}
        self.of_model = {**self.training, **self.statistics}
        kinds_of_norm = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
        norms = [name for name, layer in module.named_modules() if isinstance(layer, kinds_of_norm)]
        self.normalisations = tuple(name for name in self.of_model if name.rpartition(".")[0] in norms)

    @property
    def layout(self) -> Layout:
        """The layout of the model: parameters that train, then statistics."""
        return Layout.of({name: tensor.shape for name, tensor in self.of_model.items()})

    def flat(self) -> Flat:
        """Return the present values of the model's tensors as one vector."""
        return self.layout.flatten({name: read(tensor) for name, tensor in self.of_model.items()})

    def check(self) -> None:
        """Check that a model can have these tensors.

        Raises:
            ExperimentError: `freeze` names nothing, no parameter trains, a tensor has a wrong type, or the file of
                weights belongs to another module.
        """
        import torch

        for pattern in self._kinds.freeze:
            if not any(is_of_layer(name, pattern) for name in self.all):
                layers = dict.fromkeys(name.rpartition(".")[0] for name in self.all)
                raise ExperimentError(
                    f"model.freeze: the model has no tensor or layer {pattern!r}; its layers are {', '.join(layers)}"
                )
        if not self.training and not self.frozen:
            raise ExperimentError(
                "the module has no parameters; make its layers attributes of the module, and lists of layers a "
                "torch.nn.ModuleList"
            )
        if not self.training:
            raise ExperimentError(
                "the module has no parameter to train: all have requires_grad False or are named in model.freeze; let "
                "some train"
            )
        for name, tensor in self.all.items():
            if tensor.layout != torch.strided:
                raise ExperimentError(
                    f"{name} is a sparse tensor ({tensor.layout}); make it dense, or hold a constant outside the "
                    "module's parameters and buffers"
                )
        for name, parameter in self.training.items():
            if parameter.is_complex():
                raise ExperimentError(
                    f"parameter {name} is {parameter.dtype}, and only float32 is sent; hold its real and imaginary "
                    "parts in a float32 parameter, and call torch.view_as_complex in forward"
                )
            if parameter.dtype != torch.float32:
                raise ExperimentError(f"parameter {name} is {parameter.dtype}; call .float() on the module")
        for name in (*self.statistics, *self.frozen_statistics):
            if self.all[name].dtype != torch.float32:
                raise ExperimentError(
                    f"buffer {name} is {self.all[name].dtype}; make statistics float32, and register constants with "
                    "persistent=False"
                )
        if self._kinds.weights is not None:
            shapes = {name: tuple(tensor.shape) for name, tensor in self.all.items()}
            self._kinds.weights.check(shapes, needed=self.frozen)
