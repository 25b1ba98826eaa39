"""Make a model from the section `model` of an experiment."""

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment import ModelSettings
from fedstrata.models.cnn import cnn
from fedstrata.models.convnet import convnet
from fedstrata.models.dropout_cnn import dropout_cnn
from fedstrata.models.lenet5 import lenet5
from fedstrata.models.mlp import mlp
from fedstrata.models.model import Model, tensors_of
from fedstrata.models.module_tensors import Kinds
from fedstrata.models.resnet18 import resnet18
from fedstrata.models.torch_module import ModuleModel, from_module
from fedstrata.models.weights_file import WeightsFile
from fedstrata.plugins import load_plugin, or_failed

BUILT_IN = {
    "mlp": mlp,
    "cnn": cnn,
    "lenet5": lenet5,
    "convnet": convnet,
    "dropout_cnn": dropout_cnn,
    "resnet18": resnet18,
}


def build_model(settings: ModelSettings, info: DatasetInfo) -> Model:
    """Return the model for data of this shape and these classes. All clusters share the layers in `settings.shared`.

    `module:Class` names the user's own torch module, which is constructed with `settings.options`. `module:function`
    names a function of (settings, info) that returns a Model. It can make the Model from layers (`Model.of_layers`),
    from a torch module (`from_module`), or directly.

    Raises:
        ExperimentError: the model does not fit the data, or lacks a layer that the settings name.
        PluginError: the user's own code is missing, fails or does not return a Model.
    """
    built_in = BUILT_IN.get(settings.name)
    model = built_in(settings, info) if built_in else _of_kinds(_build_own(settings, info), settings)
    if settings.buffers == "device":
        model = replace(model, at_home=model.statistics)
    if settings.shared is None:
        return model
    return replace(model, shared=tensors_of(model.layout, settings.shared))


def check_inputs(settings: ModelSettings, examples: Examples) -> None:
    """Raise ExperimentError if the model is built in, and the data have inputs that no built-in model accepts: further
    inputs, or whole numbers.
    """
    found = [f"a further input {name}" for name in examples.more]
    found += ["inputs of whole numbers"] if examples.stored.dtype == np.int64 else []
    if found and settings.name in BUILT_IN:
        raise ExperimentError(
            f"model {settings.name} takes one input of float32, but the data have {' and '.join(found)}; "
            "store float32, or pixels as uint8, or name a model of your own in model.name"
        )


def _of_kinds(model: Model, settings: ModelSettings) -> Model:
    """Return the user's own model with the frozen tensors and the file of weights that the settings name.

    Raises:
        ExperimentError: the settings name frozen tensors or weights, but the model is not a torch module.
    """
    weights = None
    if settings.weights is not None:
        weights = WeightsFile(path=settings.weights, sha256=settings.weights_sha256)
    kinds = Kinds(freeze=settings.freeze, keeps_statistics=settings.buffers == "freeze", weights=weights)
    if kinds == Kinds():
        return model
    if not isinstance(model, ModuleModel):
        raise ExperimentError(
            f"model.freeze, buffers and weights are only for torch modules, and {settings.name} is not one; remove them"
        )
    return model.of_kinds(kinds)


def _build_own(settings: ModelSettings, info: DatasetInfo) -> Model:
    own = load_plugin(settings.name, "model")
    torch: Any = sys.modules.get("torch")  # not imported here: a module of torch has already imported it
    if torch is not None and isinstance(own, torch.nn.Module):
        raise PluginError(f"model {settings.name} is a module; name its class, {type(own).__name__}")
    is_class = torch is not None and isinstance(own, type) and issubclass(own, torch.nn.Module)
    with or_failed(f"model {settings.name} failed with", own):
        model = from_module(partial(own, **settings.options)) if is_class else own(settings, info)
    if not isinstance(model, Model):
        raise PluginError(
            f"model {settings.name} must be a torch.nn.Module, or return a fedstrata.models.Model, not "
            f"{type(model).__name__}; for a class Net of modules, return from_module(Net)"
        )
    return model
