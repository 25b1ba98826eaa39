"""Models. A built-in model needs torch only for its arithmetic, not for its layout and its initial weights."""

from fedstrata.models.building import build_model, check_inputs
from fedstrata.models.model import Layer, Model, Normalisation
from fedstrata.models.torch_module import from_module

__all__ = ["Layer", "Model", "Normalisation", "build_model", "check_inputs", "from_module"]
