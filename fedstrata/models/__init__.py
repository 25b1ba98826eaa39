"""Models: their layout and initial weights without torch, their arithmetic with it."""

from fedstrata.models.building import build_model
from fedstrata.models.model import Layer, Model
from fedstrata.models.torch_module import from_module

__all__ = ["Layer", "Model", "build_model", "from_module"]
