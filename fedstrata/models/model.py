"""The model that all three tiers use: a layout, its shared layers, initial weights and a pure function for outputs.

Only `Model.outputs` needs torch, and only devices call it. GPS and LPS use everything else.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from fedstrata.errors import ExperimentError
from fedstrata.tensors import Flat, Layout
from fedstrata.tensors.processor import CPU, Processor

if TYPE_CHECKING:
    import torch

    from fedstrata.datasets import Examples

    Outputs = Callable[..., torch.Tensor]  # called with weights by name, inputs, and further inputs by keyword
    DroppingOutputs = Callable[..., torch.Tensor]

MATRIX_AXES = 2
PIECE_ELEMENTS = 1 << 18
INITIAL_WEIGHTS = 0x696E6974  # "init": second number of these draws' addresses; in a device's draws it is the index


@dataclass(frozen=True, kw_only=True)
class LayerTensor:
    """Describe a tensor of a layer and its initial values: uniform draws within ±bound around `centre`."""

    name: str
    shape: tuple[int, ...]
    bound: float = 0.0
    centre: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Describe one layer of a model: a dense layer or a convolution."""

    name: str
    """Name of the layer."""
    shape: tuple[int, ...]
    """Shape of the weight: (out, in) or (out, in, *kernel)."""
    has_bias: bool = True
    """True if the layer has a bias of shape (out,)."""

    @property
    def tensors(self) -> tuple[LayerTensor, ...]:
        """Weight and bias, drawn within ±1/√fan_in as PyTorch does. fan_in is the number of inputs of one output."""
        bound = 1 / math.sqrt(math.prod(self.shape[1:]))
        weight = LayerTensor(name=f"{self.name}.weight", shape=self.shape, bound=bound)
        bias = LayerTensor(name=f"{self.name}.bias", shape=self.shape[:1], bound=bound)
        return (weight, bias) if self.has_bias else (weight,)


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """Describe a normalisation layer. Each channel has a weight that starts at 1, and a bias that starts at 0."""

    name: str
    """Name of the layer."""
    channels: int
    """Number of channels."""

    @property
    def tensors(self) -> tuple[LayerTensor, ...]:
        """Weight and bias of the layer, both of shape (channels,)."""
        shape = (self.channels,)
        return (
            LayerTensor(name=f"{self.name}.weight", shape=shape, centre=1.0),
            LayerTensor(name=f"{self.name}.bias", shape=shape),
        )


@dataclass(frozen=True, kw_only=True)
class Model:
    """Describe a model as data and pure functions. Only `outputs` needs torch. Servers do not call `outputs`."""

    layout: Layout
    """Names and shapes of the tensors."""
    shared: tuple[str, ...]
    """Tensors that all clusters share, in the layout's order."""
    initial: Callable[[int], Flat]
    """Function of a seed that returns the initial weights, shape (layout.size,)."""
    outputs: "Outputs"
    """Function of weights by name and inputs of shape (n, *input_shape). It returns outputs of shape (n, num_classes).
    If the data have further inputs, the function gets them by keyword. Only devices call the function."""
    dense: tuple[int, ...] = ()
    """Widths from input to classes, for a model of only dense layers with ReLU between them. Many devices can train
    such a model together. Empty for other models."""
    statistics: tuple[str, ...] = ()
    """Tensors without a gradient, such as the running means of batch normalisation. They are the last tensors of the
    layout. A local step may change them in place."""
    normalisations: tuple[str, ...] = ()
    """Tensors of normalisation layers, including their statistics."""
    at_home: tuple[str, ...] = ()
    """Tensors that stay on their device with every method."""
    frozen: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    """Shapes of the parameters that are neither trained nor sent, by name."""
    dropping: "DroppingOutputs | None" = None
    """Function like `outputs`, but with a random generator as an additional argument. It is for models that draw random
    numbers in training (dropout)."""
    processor: Processor = CPU
    """The processor on which `outputs` computes. It makes the tensors for `outputs`."""

    def __post_init__(self) -> None:
        in_order = tuple(name for name in self.layout.names if name in self.shared)
        if tuple(self.shared) != in_order:
            raise ExperimentError(
                f"a model's shared tensors must be tensors of its layout, in the layout's order, not "
                f"{list(self.shared)}; the layout has {', '.join(self.layout.names)}"
            )
        if self.statistics != self.layout.names[len(self.layout.names) - len(self.statistics) :]:
            raise ExperimentError(
                f"a model's statistics must be the last tensors of its layout, not {list(self.statistics)}; the layout "
                f"has {', '.join(self.layout.names)}"
            )

    @cached_property
    def trainable(self) -> Layout:
        """Layout of the tensors with a gradient, which come first in the model's layout."""
        return Layout(self.layout.tensors[: len(self.layout.tensors) - len(self.statistics)])

    @property
    def last_layer(self) -> tuple[str, ...]:
        """Names of the tensors of the last layer that trains, such as its weight and its bias."""
        last = self.trainable.names[-1].rpartition(".")[0]
        return tuple(name for name in self.trainable.names if name.rpartition(".")[0] == last)

    @property
    def last_weight(self) -> str:
        """Name of the weight of the last layer. It is empty if the last layer is not a dense layer."""
        shapes = {tensor.name: tensor.shape for tensor in self.trainable.tensors}
        return next((name for name in self.last_layer if len(shapes[name]) == MATRIX_AXES), "")

    @property
    def last_width(self) -> int:
        """Number of inputs of the last layer, if this layer is dense. Otherwise 0."""
        return next((tensor.shape[1] for tensor in self.trainable.tensors if tensor.name == self.last_weight), 0)

    @classmethod
    def of_layers(
        cls,
        layers: Sequence[Layer | Normalisation],
        *,
        shared: Iterable[str],
        outputs: "Outputs",
        dense: tuple[int, ...] = (),
        dropping: "DroppingOutputs | None" = None,
    ) -> Self:
        """Return a model of these layers. `shared` names the layers that all clusters share. NumPy draws the initial
        weights.
        """
        tensors = [tensor for layer in layers for tensor in layer.tensors]
        layout = Layout.of({tensor.name: tensor.shape for tensor in tensors})

        def initial(seed: int) -> Flat:
            return initial_weights(tensors, seed)

        return cls(
            layout=layout,
            shared=tensors_of(layout, shared),
            initial=initial,
            outputs=outputs,
            dense=dense,
            normalisations=tuple(
                tensor.name for layer in layers if isinstance(layer, Normalisation) for tensor in layer.tensors
            ),
            dropping=dropping,
        )

    def of_run(self, seed: int, processor: Processor = CPU) -> Self:
        """Return the model for a run with this seed, computed on this processor. By default, only the initial weights
        depend on the seed. A subclass returns another model if other values also depend on the seed.
        """
        return replace(self, processor=processor)

    def tensors(self, weights: Flat) -> "dict[str, torch.Tensor]":
        """Return copies of the tensors of a flat vector, shape (layout.size,), by name."""
        return self.processor.tensors(self.layout.views(weights))

    def outputs_for(self, weights: "Mapping[str, torch.Tensor]", examples: "Examples") -> "torch.Tensor":
        """Return the outputs for examples."""
        more = self.processor.tensors(examples.more)
        return self.outputs(weights, self.processor.tensor(examples.inputs), **more)

    def module(self, weights: "Mapping[str, torch.Tensor]") -> "torch.nn.Module":
        """Return a torch module in eval mode that computes `outputs` with these weights."""
        from fedstrata.models.wrapped import Wrapped

        return Wrapped(self.outputs, weights).eval()

    def outputs_in_training(self, rng: np.random.Generator) -> "Outputs":
        """Return the function that computes outputs in a local step. If the model has dropout (`dropping` is set),
        return `dropping` with random numbers from `rng`. Otherwise return `outputs`.
        """
        dropping = self.dropping
        if dropping is None:
            return self.outputs
        return lambda weights, inputs, **more: dropping(weights, inputs, rng, **more)


def initial_weights(tensors: Sequence[LayerTensor], seed: int) -> Flat:
    """Return uniform random weights, tensor by tensor. The random numbers of each tensor depend on the seed and on the
    tensor's place in `tensors`.
    """
    sizes = [math.prod(tensor.shape) for tensor in tensors]
    flat = np.empty(sum(sizes), np.float32)
    begin = 0
    for index, (tensor, size) in enumerate(zip(tensors, sizes, strict=True)):
        rng = np.random.default_rng([seed, INITIAL_WEIGHTS, index])
        for at in range(begin, begin + size, PIECE_ELEMENTS):  # draws are float64; pieces limit the memory
            stop = min(at + PIECE_ELEMENTS, begin + size)
            flat[at:stop] = tensor.centre + rng.uniform(-tensor.bound, tensor.bound, stop - at)
        begin += size
    return flat


def tensors_of(layout: Layout, layers: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the tensors in these layers, in the layout's order. The layer name `block` also means
    `block.0`, `block.1` and so on.

    Raises:
        ExperimentError: the model has no such layer.
    """
    wanted = (layers,) if isinstance(layers, str) else tuple(layers)
    known = list(dict.fromkeys(name.rpartition(".")[0] or name for name in layout.names))
    for layer in wanted:
        if not any(is_of_layer(name, layer) for name in known):
            raise ExperimentError(
                f"model.shared: the model has no layer {layer!r}; choose from {', '.join(known)}, or [] for none"
            )
    return tuple(name for name in layout.names if any(is_of_layer(name, layer) for layer in wanted))


def is_of_layer(name: str, pattern: str) -> bool:
    """Return whether a layer matches the pattern, such as `block` or `block.*.norm`. `name` is the name of the layer,
    or of something inside the layer.
    """
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
