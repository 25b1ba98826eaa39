"""Models beside the torch modules that they are to compute the same as."""

import torch
from torch import nn

from fedstrata.datasets import DatasetInfo
from fedstrata.models import Model
from fedstrata.tensors import Flat, Layout


def tensors(layout: Layout, flat: Flat) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(view) for name, view in layout.views(flat).items()}


def cnn_module(channels: int, padding: int, flattened: int) -> nn.Module:
    """The built-in model cnn, for images of so many channels."""
    layers = [nn.Conv2d(channels, 6, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(6, 16, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    layers += [nn.Linear(flattened, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*layers)


def with_weights(module: nn.Module, model: Model, flat: Flat) -> nn.Module:
    """Give a module these weights. It has its parameters in the order of the model's layout."""
    with torch.no_grad():
        for parameter, view in zip(module.parameters(), model.layout.views(flat).values(), strict=True):
            parameter.copy_(torch.tensor(view))
    return module


def assert_same_outputs(model: Model, module: nn.Module, info: DatasetInfo, *, rtol: float, atol: float) -> None:
    """The model computes what the module does with the same weights."""
    flat = model.initial(5)
    with_weights(module, model, flat)
    with torch.no_grad():
        inputs = torch.rand(4, *info.input_shape, generator=torch.Generator().manual_seed(2))
        expected = module(inputs)
        found = model.outputs(tensors(model.layout, flat), inputs)
    assert float(expected.abs().max()) > 0.01
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
