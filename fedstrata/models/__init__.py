"""Models. The layout and the initial weights of a built-in model need no torch. Its arithmetic needs torch."""

from fedstrata.models.building import build_model
from fedstrata.models.model import Layer, Model, Normalisation
from fedstrata.models.torch_module import from_module

__all__ = ["Layer", "Model", "Normalisation", "build_model", "from_module"]
