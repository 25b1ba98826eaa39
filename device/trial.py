"""A model of the user's own, tried on a few examples before a device is ready, so that one line says what is wrong."""

import random

import numpy as np
import torch

from device.evaluation import named_tensors
from fedstrata.datasets import Dataset
from fedstrata.errors import PluginError
from fedstrata.experiment import ModelSettings
from fedstrata.models import Model
from fedstrata.plugins import describe

EXAMPLES = 3


def try_out(settings: ModelSettings, model: Model, dataset: Dataset, seed: int) -> None:
    """Refuse a model of the user's own whose outputs have a wrong shape, or differ for the same weights and inputs.

    Raises:
        PluginError: that, or the model fails.
    """
    if ":" not in settings.name:
        return
    inputs = torch.tensor(dataset.train.take(np.arange(min(EXAMPLES, len(dataset.train)))).inputs)
    weights = named_tensors(model.layout, model.initial(seed))
    wanted = (len(inputs), dataset.num_classes)
    before = _global_generators()
    for measures in (True, False):
        try:
            found, again = (_outputs(model, weights, inputs, measures=measures) for _ in range(2))
        except Exception as error:
            raise PluginError(
                f"model {settings.name} failed on inputs of shape {tuple(inputs.shape)} with {describe(error)}"
            ) from error
        if not isinstance(found, torch.Tensor) or found.shape != wanted or not found.is_floating_point():
            raise PluginError(
                f"model {settings.name} gives {_described(found)} for {len(inputs)} inputs; outputs are a float tensor "
                f"of shape {wanted}: one row an input, one column a class of data.num_classes"
            )
        if _global_generators() != before or not torch.equal(found.nan_to_num(), again.nan_to_num()):
            raise PluginError(
                f"model {settings.name} gives other outputs for the same weights and inputs, or draws from a generator "
                "of its own, of NumPy or of Python's random: draw from torch's global generator, and keep no state"
            )


@torch.no_grad()
def _outputs(model: Model, weights: dict[str, torch.Tensor], inputs: torch.Tensor, *, measures: bool) -> torch.Tensor:
    outputs = model.outputs if measures else model.outputs_in_training(np.random.default_rng(0))
    return outputs(weights, inputs)


def _global_generators() -> object:
    """Return the states of the generators that nothing addresses."""
    state = np.random.get_state(legacy=False)["state"]
    return random.getstate(), state["key"].tobytes(), state["pos"]


def _described(found: object) -> str:
    if not isinstance(found, torch.Tensor):
        return f"a {type(found).__name__}"
    return f"{found.dtype} of shape {tuple(found.shape)}"
