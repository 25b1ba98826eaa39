"""A model made from the user's own torch module. All three tiers then need torch.

A module has four kinds of tensors. Parameters that train, and statistics (float32 buffers, such as the means of batch
normalisation), are tensors of the model. Frozen parameters and all other buffers are not tensors of the model, and are
never sent.
"""

import inspect
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fedstrata.errors import ExperimentError, PluginError
from fedstrata.models.model import Model, is_of_layer, tensors_of
from fedstrata.models.weights import WeightsFile
from fedstrata.plugins import describe
from fedstrata.tensors import Flat, Layout

if TYPE_CHECKING:
    import torch

    from fedstrata.models.model import Outputs

_turn = threading.RLock()  # threads share torch's generator and a module's mode and weights


def from_module(module_factory: "Callable[[], torch.nn.Module]", shared: Iterable[str] | None) -> "ModuleModel":
    """Return the model of a torch module. GPS and LPS construct the module too, so they also need torch.

    A local step runs the module in training mode, and a measurement runs it in eval mode. The module may draw from
    torch's generator, for example masks of dropout. These draws depend only on seed, device, round and step.

    The tensors of the model are the parameters that train, and the statistics. Statistics are buffers of float32, which
    have no gradient. Parameters with `requires_grad=False`, buffers with `persistent=False` and counters are not sent.
    Every device makes them with `module_factory()` under the experiment's seed. Each training begins with these values.

    Args:
        module_factory: Function that makes the module. It may draw from torch's global generator only.
        shared: Names of the layers that all clusters share by default, such as `["conv1"]`. With None, they share all
            layers except the last.
    """
    model = _model_of(module_factory, Kinds())
    if shared is None:
        last = model.trainable.names[-1].rpartition(".")[0]
        return replace(model, shared=tuple(name for name in model.layout.names if not is_of_layer(name, last)))
    return replace(model, shared=tensors_of(model.layout, shared))


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


@dataclass(frozen=True, kw_only=True)
class ModuleModel(Model):
    """Describe a model that is made from a torch module. The module's forward function computes its outputs."""

    module_factory: "Callable[[], torch.nn.Module]"
    kinds: Kinds
    forward: "_Forward"

    def of_run(self, seed: int) -> Self:
        """Return the same model for a run with this seed. The seed also decides the values of the module's tensors that
        are never sent.
        """
        forward, drawn = _Forward(self.module_factory, self.kinds, seed), self.initial
        own = replace(self, forward=forward, outputs=forward.measured)
        return replace(own, initial=lambda other: forward.initial(self.layout) if other == seed else drawn(other))

    def module(self, weights: "Mapping[str, torch.Tensor]") -> "torch.nn.Module":
        """Return the run's module in eval mode. The model's tensors have these weights. All other tensors have their
        initial values.
        """
        return self.forward.loaded(weights)

    def outputs_in_training(self, rng: np.random.Generator) -> "Outputs":
        """Return the function that computes outputs in the steps of one training. This function updates the statistics,
        which are among the weights.
        """
        return self.forward.training(rng)

    def of_kinds(self, kinds: Kinds) -> "ModuleModel":
        """Return the same model with these frozen tensors, and with the values in the file of weights.

        Raises:
            ExperimentError: a pattern names nothing, or the weights belong to another module.
        """
        other = _model_of(self.module_factory, kinds)
        return replace(other, shared=tuple(name for name in other.layout.names if name in self.shared))


def _model_of(module_factory: "Callable[[], torch.nn.Module]", kinds: Kinds) -> ModuleModel:
    module = _outline(module_factory)
    parts = _Parts(module, kinds)
    _check(module, kinds, parts)
    layout = Layout.of({name: tensor.shape for name, tensor in parts.of_model.items()})
    forward = _Forward(module_factory, kinds, seed=0)
    return ModuleModel(
        layout=layout,
        shared=(),
        initial=lambda seed: _initial(module_factory, kinds, seed, layout),
        outputs=forward.measured,
        statistics=tuple(parts.statistics),
        normalisations=parts.normalisations,
        frozen={name: tuple(tensor.shape) for name, tensor in parts.frozen.items()},
        module_factory=module_factory,
        kinds=kinds,
        forward=forward,
    )


class _Parts:
    """Hold the tensors of a module by name and kind."""

    def __init__(self, module: "torch.nn.Module", kinds: Kinds) -> None:
        from torch import float32, nn

        persistent = module.state_dict().keys()
        parameters = dict(module.named_parameters())
        self.training = {
            name: tensor for name, tensor in parameters.items() if tensor.requires_grad and not kinds.is_frozen(name)
        }
        self.frozen = {name: tensor for name, tensor in parameters.items() if name not in self.training}
        of_buffers = {name: tensor for name, tensor in module.named_buffers() if name in persistent}
        floating = {name: tensor for name, tensor in of_buffers.items() if tensor.is_floating_point()}
        self.odd = [name for name, tensor in floating.items() if tensor.dtype != float32]
        self.kept = [name for name in floating if kinds.keeps_statistics or kinds.is_frozen(name)]
        self.statistics = {name: tensor for name, tensor in floating.items() if name not in self.kept}
        self.of_model = {**self.training, **self.statistics}
        self.known = {**parameters, **of_buffers}
        kinds_of_norm = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
        norms = [name for name, each in module.named_modules() if isinstance(each, kinds_of_norm)]
        self.normalisations = tuple(name for name in self.of_model if name.rpartition(".")[0] in norms)


class _Forward:
    """Compute a module's forward function with weights that the caller gives. The result depends only on the arguments,
    in any thread.

    The module is constructed when it is first used. A server uses it only for initial weights.
    """

    def __init__(self, module_factory: "Callable[[], torch.nn.Module]", kinds: Kinds, seed: int) -> None:
        self._factory, self._kinds, self._seed = module_factory, kinds, seed
        self._mode: bool | None = None

    @cached_property
    def _module(self) -> "torch.nn.Module":
        return _made(self._factory, self._kinds, self._seed)

    @cached_property
    def _parts(self) -> _Parts:
        return _Parts(self._module, self._kinds)

    @cached_property
    def _places(self) -> "dict[str, tuple[MutableMapping[str, torch.Tensor | None], str]]":
        """The place of each buffer, by name: the dictionary of buffers in its submodule, and the buffer's key there."""
        found: dict[str, tuple[MutableMapping[str, torch.Tensor | None], str]] = {}
        for name, _ in self._module.named_buffers():
            layer, _, leaf = name.rpartition(".")
            found[name] = self._module.get_submodule(layer)._buffers, leaf
        return found

    def initial(self, layout: Layout) -> Flat:
        """Return the weights that the module has when it is constructed."""
        with _turn:
            return _flattened(self._module, self._kinds, layout)

    def loaded(self, weights: "Mapping[str, torch.Tensor]") -> "torch.nn.Module":
        """Return a new module in eval mode with these weights."""
        import torch

        module = _made(self._factory, self._kinds, self._seed)
        with torch.no_grad():
            for name, tensor in _Parts(module, self._kinds).of_model.items():
                tensor.copy_(weights[name])
        return module.eval()

    def measured(
        self, weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor", **more: "torch.Tensor"
    ) -> "torch.Tensor":
        """Return the outputs in eval mode."""
        return self._computed(weights, inputs, more, self._kept(), seed=0, is_training=False)

    def training(self, rng: np.random.Generator) -> "Outputs":
        """Return the function that computes outputs in the steps of one training, with random numbers from `rng`.

        In each training, buffers that are not statistics begin with their initial values. What an earlier training
        changed in these buffers is lost.
        """
        kept = self._kept()

        def trained(
            weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor", **more: "torch.Tensor"
        ) -> "torch.Tensor":
            return self._computed(weights, inputs, more, kept, seed=int(rng.integers(1 << 63)), is_training=True)

        return trained

    def _kept(self) -> "dict[str, torch.Tensor]":
        with _turn:
            return {
                name: buffer.clone()
                for name, buffer in self._module.named_buffers()
                if name not in self._parts.statistics
            }

    def _computed(
        self,
        weights: "Mapping[str, torch.Tensor]",
        inputs: "torch.Tensor",
        more: "Mapping[str, torch.Tensor]",
        kept: "dict[str, torch.Tensor]",
        *,
        seed: int,
        is_training: bool,
    ) -> "torch.Tensor":
        from torch.func import functional_call

        with _turn, _drawing(seed), self._with_buffers(weights, kept):
            self._set_mode(is_training=is_training)
            parameters = {name: weights[name] for name in self._parts.training}
            try:
                outputs: torch.Tensor = functional_call(self._module, parameters, (inputs,), dict(more))
            except Exception as error:
                told = describe(error, self._module)
                advice = _advice(self._module, inputs, more)
                raise PluginError(
                    f"the module fails on inputs of shape {tuple(inputs.shape)} with {told}{advice}"
                ) from error
        return outputs

    @contextmanager
    def _with_buffers(self, weights: "Mapping[str, torch.Tensor]", kept: "dict[str, torch.Tensor]") -> Iterator[None]:
        """Run a block in which the module has other buffers. Their values come from `kept` or, if `kept` has no such
        name, from `weights`.

        After the block, write changed buffers back to `kept` or `weights`, and restore the module's own buffers.
        """
        import torch

        own = {name: buffers[leaf] for name, (buffers, leaf) in self._places.items()}
        for name, (buffers, leaf) in self._places.items():
            buffers[leaf] = kept[name] if name in kept else weights[name]
        try:
            yield
        finally:
            for name, (buffers, leaf) in self._places.items():
                left = buffers[leaf]
                buffers[leaf] = own[name]
                if left is None:
                    continue
                if name in kept:
                    kept[name] = left
                elif left is not weights[name]:  # the module has replaced the tensor
                    with torch.no_grad():
                        weights[name].copy_(left)

    def _set_mode(self, *, is_training: bool) -> None:
        if self._mode is is_training:
            return
        self._mode = is_training
        self._module.train(is_training)
        for name in self._parts.kept:  # in eval mode, layers use frozen statistics and do not update them
            self._module.get_submodule(name.rpartition(".")[0]).eval()


def _advice(module: "torch.nn.Module", inputs: "torch.Tensor", more: "Mapping[str, torch.Tensor]") -> str:
    """If forward expects other arguments, return a text for the error that says which inputs forward gets. Otherwise
    return an empty text.
    """
    try:
        inspect.signature(module.forward).bind(inputs, **more)
    except TypeError:
        named = f" and by name {', '.join(more)}" if more else " only"
        return f"; forward gets the inputs{named}, no targets, because the task computes the loss"
    return ""


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """Run a block with torch's generator set by this seed. Restore the generator afterwards."""
    import torch

    # This takes 2 µs. torch.random.fork_rng and torch.manual_seed look for GPUs and take 100 µs.
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


def _seeded(module_factory: "Callable[[], torch.nn.Module]", seed: int) -> "torch.nn.Module":
    """Construct a module with torch's generator set by this seed, and return the module. This happens on one thread,
    because the values of `orthogonal_`, for example, depend on the number of threads.
    """
    import torch

    with _turn, _drawing(seed):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return module_factory()
        finally:
            torch.set_num_threads(threads)


def _outline(module_factory: "Callable[[], torch.nn.Module]") -> "torch.nn.Module":
    """Return a module that is used only for its names and shapes. If possible, its tensors need no memory."""
    import torch

    try:
        with torch.device("meta"):
            return _seeded(module_factory, seed=0)
    except Exception:  # the module needs values of tensors, or has a fault that the next line raises again
        return _seeded(module_factory, seed=0)


def _made(
    module_factory: "Callable[[], torch.nn.Module]", kinds: Kinds, seed: int, names: Collection[str] = ()
) -> "torch.nn.Module":
    """Construct a module with initial values drawn from `seed`, and return it. If `kinds` names a file of weights, the
    tensors with these `names` get their values from the file. If `names` is empty, all tensors in the file are used.
    """
    import torch

    module = _seeded(module_factory, seed)
    if kinds.weights is not None:
        known = _Parts(module, kinds).known
        with torch.no_grad():
            for name, values in kinds.weights.values(names or known):
                known[name].copy_(torch.from_numpy(values))
    return module


def _initial(module_factory: "Callable[[], torch.nn.Module]", kinds: Kinds, seed: int, layout: Layout) -> Flat:
    """Return the initial weights of the model. If the file of weights has all of them, the module is not
    constructed.
    """
    if kinds.weights is not None and kinds.weights.has(layout.names):
        flat = np.empty(layout.size, np.float32)
        views = layout.views(flat)
        with np.errstate(over="ignore"):  # too large float64 values become infinite, as in torch
            for name, values in kinds.weights.values(layout.names):
                views[name][...] = values
        return flat
    return _flattened(_made(module_factory, kinds, seed, layout.names), kinds, layout)


def _flattened(module: "torch.nn.Module", kinds: Kinds, layout: Layout) -> Flat:
    tensors = _Parts(module, kinds).of_model
    return layout.flatten({name: tensor.detach().numpy() for name, tensor in tensors.items()})


def _check(module: "torch.nn.Module", kinds: Kinds, parts: _Parts) -> None:
    import torch

    for pattern in kinds.freeze:
        if not any(is_of_layer(name, pattern) for name in parts.known):
            layers = dict.fromkeys(name.rpartition(".")[0] for name in parts.known)
            raise ExperimentError(
                f"model.freeze: the model has no tensor or layer {pattern!r}; its layers are {', '.join(layers)}"
            )
    if not parts.training:
        raise ExperimentError(
            "the module has no parameter to train: all have requires_grad False or are named in model.freeze; let some "
            "train"
        )
    for name, parameter in parts.training.items():
        if parameter.dtype != torch.float32:
            raise ExperimentError(f"parameter {name} is {parameter.dtype}; weights must be float32")
    if parts.odd:
        raise ExperimentError(
            f"buffer {parts.odd[0]} is {parts.known[parts.odd[0]].dtype}; make statistics float32, and register "
            "constants with persistent=False"
        )
    if kinds.weights is not None:
        known: dict[str, Any] = {name: tuple(tensor.shape) for name, tensor in parts.known.items()}
        kinds.weights.check(known, needed=parts.frozen)
