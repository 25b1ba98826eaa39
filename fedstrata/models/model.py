"""What a model is to the three tiers: a layout, the shared part of it, initial weights and a pure function.

Only `Model.logits` needs torch, and only a device calls it; gps and lps use the rest.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from fedstrata.errors import ExperimentError
from fedstrata.tensors import Flat, Layout

if TYPE_CHECKING:
    import torch

    Logits = Callable[[Mapping[str, torch.Tensor], torch.Tensor], torch.Tensor]

PIECE_ELEMENTS = 1 << 18
INITIAL_WEIGHTS = 0x696E6974  # "init": tells these draws from a device's, whose second number is its index


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A dense layer or convolution: a weight of this shape, (out, in, *kernel), and a bias of shape (out,)."""

    name: str
    shape: tuple[int, ...]

    @property
    def fan_in(self) -> int:
        """Inputs that one output is a sum over."""
        return math.prod(self.shape[1:])


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as data and pure functions: no weights of its own, no state, no randomness but the seed's."""

    layout: Layout
    shared: tuple[str, ...]  # tensors that all clusters share, in the layout's order
    initial: Callable[[int], Flat]  # seed → the weights everyone starts from, shape (layout.size,)
    logits: "Logits"  # (weights by name, inputs (n, *input_shape)) → (n, num_classes)
    # The widths from input to classes where the model is dense layers with ReLU between and nothing else, tensors
    # in order: such models can be trained many at once. Empty for any other model.
    dense: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        in_order = tuple(name for name in self.layout.names if name in self.shared)
        if tuple(self.shared) != in_order:
            raise ExperimentError(
                f"a model's shared tensors are names of its layout in the layout's order, not {list(self.shared)}; "
                f"the layout has {', '.join(self.layout.names)}"
            )

    @classmethod
    def of_layers(
        cls, layers: Sequence[Layer], *, shared: Iterable[str], logits: "Logits", dense: tuple[int, ...] = ()
    ) -> Self:
        """A model of dense layers and convolutions; `shared` names layers."""
        layout = Layout.of({name: shape for layer in layers for name, shape in _tensors(layer)})

        def initial(seed: int) -> Flat:
            return uniform_weights(layers, seed)

        return cls(layout=layout, shared=tensors_of(layout, shared), initial=initial, logits=logits, dense=dense)


def uniform_weights(layers: Sequence[Layer], seed: int) -> Flat:
    """Weights and biases uniform within ±1/√fan_in, as PyTorch draws them by default; tensor by tensor addressed."""
    bounds = [1 / math.sqrt(layer.fan_in) for layer in layers for _ in _tensors(layer)]
    sizes = [math.prod(shape) for layer in layers for _, shape in _tensors(layer)]
    flat = np.empty(sum(sizes), np.float32)
    begin = 0
    for index, (bound, size) in enumerate(zip(bounds, sizes, strict=True)):
        rng = np.random.default_rng([seed, INITIAL_WEIGHTS, index])
        for at in range(begin, begin + size, PIECE_ELEMENTS):  # drawn in float64, of which no more is ever held
            stop = min(at + PIECE_ELEMENTS, begin + size)
            flat[at:stop] = rng.uniform(-bound, bound, stop - at)
        begin += size
    return flat


def tensors_of(layout: Layout, layers: Iterable[str]) -> tuple[str, ...]:
    """The tensors of the named layers, in the layout's order; `block` names all of `block.0`, `block.1`, …

    Raises:
        ExperimentError: the model has no such layer.
    """
    wanted = tuple(layers)
    known = list(dict.fromkeys(name.rpartition(".")[0] or name for name in layout.names))
    for layer in wanted:
        if not any(_belongs(name, layer) for name in known):
            raise ExperimentError(
                f"model.shared: the model has no layer {layer!r}; choose from {', '.join(known)}, or [] for none"
            )
    return tuple(name for name in layout.names if any(_belongs(name, layer) for layer in wanted))


def _belongs(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


def _tensors(layer: Layer) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return ((f"{layer.name}.weight", layer.shape), (f"{layer.name}.bias", layer.shape[:1]))
