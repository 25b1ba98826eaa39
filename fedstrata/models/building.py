"""From the experiment's `model` settings to a model."""

from dataclasses import replace

from fedstrata.datasets import DatasetInfo
from fedstrata.errors import FedstrataError, PluginError
from fedstrata.experiment import ModelSettings
from fedstrata.models.cnn import cnn
from fedstrata.models.convnet import convnet
from fedstrata.models.dropout_cnn import dropout_cnn
from fedstrata.models.lenet5 import lenet5
from fedstrata.models.mlp import mlp
from fedstrata.models.model import Model, tensors_of
from fedstrata.models.resnet18 import resnet18
from fedstrata.plugins import describe, load_plugin

BUILT_IN = {
    "mlp": mlp,
    "cnn": cnn,
    "lenet5": lenet5,
    "convnet": convnet,
    "dropout_cnn": dropout_cnn,
    "resnet18": resnet18,
}


def build_model(settings: ModelSettings, info: DatasetInfo) -> Model:
    """Return the model for data of this shape and these classes, sharing the layers that `settings.shared` names.

    `module:function` names one's own, called with (settings, info), which returns a Model: of layers
    (`Model.of_layers`), of a torch module (`from_module`), or made by hand.

    Raises:
        ExperimentError: the model does not fit the data, or has no layer that `settings.shared` names.
        PluginError: own code is missing, fails or gives something else.
    """
    built_in = BUILT_IN.get(settings.name)
    model = built_in(settings, info) if built_in else _build_own(settings, info)
    if settings.shared is None:
        return model
    return replace(model, shared=tensors_of(model.layout, settings.shared))


def _build_own(settings: ModelSettings, info: DatasetInfo) -> Model:
    function = load_plugin(settings.name, "model")
    try:
        model = function(settings, info)
    except FedstrataError:
        raise
    except Exception as error:
        raise PluginError(f"model {settings.name} failed with {describe(error)}") from error
    if not isinstance(model, Model):
        raise PluginError(f"model {settings.name} must return a fedstrata.models.Model, not {type(model).__name__}")
    return model
