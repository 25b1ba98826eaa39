"""A model made from the user's own torch module. All three tiers then need torch.

`module_tensors` says which tensors of the module are tensors of the model. `module_source` constructs the module.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from fedstrata.errors import PluginError
from fedstrata.models.model import Model, is_of_layer, tensors_of
from fedstrata.models.module_source import ModuleSource, drawing, turn
from fedstrata.models.module_tensors import Kinds, ModuleTensors
from fedstrata.plugins import describe
from fedstrata.tensors import Flat
from fedstrata.tensors.processor import CPU, Processor

if TYPE_CHECKING:
    import torch

    from fedstrata.models.model import Outputs


def from_module(module_factory: "Callable[[], torch.nn.Module]", shared: Iterable[str] | None = None) -> "ModuleModel":
    """Return the model of a torch module. GPS and LPS construct the module too, so they also need torch.

    A local step runs the module in training mode, and a measurement runs it in eval mode. The module may draw from
    torch's generator, for example masks of dropout. These draws depend only on seed, device, round and step.

    The tensors of the model are the parameters that train, and the statistics. Statistics are buffers of float32, which
    have no gradient. Parameters with `requires_grad=False`, buffers with `persistent=False` and counters are not sent.
    Every device makes these tensors with `module_factory()` under the experiment's seed. Each training begins with
    their first values.

    Args:
        module_factory: Function that makes the module. It may draw from torch's global generator only.
        shared: Names of the layers that all clusters share by default, such as `["conv1"]`. None means all layers
            except the last.
    """
    import torch

    if isinstance(module_factory, torch.nn.Module):
        raise PluginError(
            f"from_module got a module; give its class, {type(module_factory).__name__}, or a function that makes it"
        )
    model = _model_of(ModuleSource(factory=module_factory, kinds=Kinds()))
    if shared is None:
        last = model.trainable.names[-1].rpartition(".")[0] or "*"  # "*": the module is itself one layer
        return replace(model, shared=tuple(name for name in model.layout.names if not is_of_layer(name, last)))
    return replace(model, shared=tensors_of(model.layout, shared))


@dataclass(frozen=True, kw_only=True)
class ModuleModel(Model):
    """Describe a model that is made from a torch module. The module's forward function computes the model's outputs."""

    source: ModuleSource
    forward: "_Forward"

    def of_run(self, seed: int, processor: Processor = CPU) -> Self:
        """Return the same model for a run with this seed, computed on this processor. The seed also decides the values
        of the module's tensors that are never sent.
        """
        forward, initial = _Forward(self.source, seed, processor), self.initial
        return replace(
            self,
            processor=processor,
            forward=forward,
            outputs=forward.outputs,
            # With the run's seed, the initial weights come from the module that `forward` needs anyway.
            initial=lambda other: forward.initial() if other == seed else initial(other),
        )

    def module(self, weights: "Mapping[str, torch.Tensor]") -> "torch.nn.Module":
        """Return the run's module in eval mode. The model's tensors have these weights. All other tensors have their
        initial values.
        """
        return self.forward.module(weights)

    def outputs_in_training(self, rng: np.random.Generator) -> "Outputs":
        """Return the function that computes outputs in the steps of one training. This function updates the statistics,
        which are among the weights.
        """
        return self.forward.outputs_in_training(rng)

    def of_kinds(self, kinds: Kinds) -> "ModuleModel":
        """Return the same model with these frozen tensors, and with the values in the file of weights.

        Raises:
            ExperimentError: a pattern names nothing, or the weights belong to another module.
        """
        other = _model_of(replace(self.source, kinds=kinds))
        return replace(other, shared=tuple(name for name in other.layout.names if name in self.shared))


def _model_of(source: ModuleSource) -> ModuleModel:
    """Return the model of the modules that `source` constructs. The model shares no layers."""
    tensors = ModuleTensors(source.outline(), source.kinds)
    tensors.check()
    layout, forward = tensors.layout, _Forward(source, seed=0)
    return ModuleModel(
        layout=layout,
        shared=(),
        initial=lambda seed: source.initial(seed, layout),
        outputs=forward.outputs,
        statistics=tuple(tensors.statistics),
        normalisations=tensors.normalisations,
        frozen={name: tuple(tensor.shape) for name, tensor in tensors.frozen.items()},
        source=source,
        forward=forward,
    )


class _Forward:
    """Compute a module's forward function with weights that the caller gives. The result depends only on the arguments,
    in any thread.

    The module is constructed when it is first used. Its parameters keep their initial values, because each call gets
    parameters and buffers as arguments.
    """

    def __init__(self, source: ModuleSource, seed: int, processor: Processor = CPU) -> None:
        self._source, self._seed, self._processor = source, seed, processor
        self._mode: bool | None = None

    @cached_property
    def _module(self) -> "torch.nn.Module":
        return self._processor.module(self._source.module(self._seed))

    @cached_property
    def _tensors(self) -> ModuleTensors:
        return ModuleTensors(self._module, self._source.kinds)

    @cached_property
    def _places(self) -> "dict[str, tuple[MutableMapping[str, torch.Tensor | None], str]]":
        """The place of each buffer, by name: the dictionary of buffers in its submodule, and the buffer's key there."""
        found: dict[str, tuple[MutableMapping[str, torch.Tensor | None], str]] = {}
        for name, _ in self._module.named_buffers():
            layer, _, leaf = name.rpartition(".")
            found[name] = self._module.get_submodule(layer)._buffers, leaf
        return found

    def initial(self) -> Flat:
        """Return the weights that the module has when it is constructed."""
        with turn:
            return self._tensors.flat()

    def module(self, weights: "Mapping[str, torch.Tensor]") -> "torch.nn.Module":
        """Return a new module in eval mode with these weights."""
        import torch

        module = self._source.module(self._seed)
        with torch.no_grad():
            for name, tensor in ModuleTensors(module, self._source.kinds).of_model.items():
                tensor.copy_(weights[name])
        return module.eval()

    def outputs(
        self, weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor", **more: "torch.Tensor"
    ) -> "torch.Tensor":
        """Return the outputs in eval mode."""
        return self._computed(weights, inputs, more, self._other_buffers(), seed=0, is_training=False)

    def outputs_in_training(self, rng: np.random.Generator) -> "Outputs":
        """Return the function that computes outputs in the steps of one training, with random numbers from `rng`.

        In each training, buffers that are not statistics begin with their initial values. What an earlier training
        changed in these buffers is lost.
        """
        others = self._other_buffers()

        def outputs(
            weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor", **more: "torch.Tensor"
        ) -> "torch.Tensor":
            return self._computed(weights, inputs, more, others, seed=int(rng.integers(1 << 63)), is_training=True)

        return outputs

    def _other_buffers(self) -> "dict[str, torch.Tensor]":
        """Return copies of the buffers that are not tensors of the model."""
        with turn:
            return {
                name: buffer.clone()
                for name, buffer in self._module.named_buffers()
                if name not in self._tensors.statistics
            }

    def _computed(
        self,
        weights: "Mapping[str, torch.Tensor]",
        inputs: "torch.Tensor",
        more: "Mapping[str, torch.Tensor]",
        others: "dict[str, torch.Tensor]",
        *,
        seed: int,
        is_training: bool,
    ) -> "torch.Tensor":
        """Return the outputs for weights, inputs, further inputs by name, and the buffers that are not among the
        weights. `seed` decides the module's random numbers.
        """
        from torch.func import functional_call

        with drawing(seed, self._processor), self._with_buffers(weights, others):
            self._set_mode(is_training=is_training)
            parameters = {name: weights[name] for name in self._tensors.training}
            try:
                outputs: torch.Tensor = functional_call(self._module, parameters, (inputs,), dict(more))
            except (Exception, SystemExit) as error:
                told = describe(error, self._module)
                advice = _advice(self._module, inputs, more)
                raise PluginError(
                    f"the module fails on inputs of shape {tuple(inputs.shape)} with {told}{advice}"
                ) from error
        return outputs

    @contextmanager
    def _with_buffers(self, weights: "Mapping[str, torch.Tensor]", others: "dict[str, torch.Tensor]") -> Iterator[None]:
        """Run a block in which the module has other buffers: statistics come from `weights`, and the rest from
        `others`.

        After the block, write changed buffers back to `weights` or `others`, and restore the module's own buffers.
        """
        import torch

        own = {name: buffers[leaf] for name, (buffers, leaf) in self._places.items()}
        for name, (buffers, leaf) in self._places.items():
            buffers[leaf] = others[name] if name in others else weights[name]
        try:
            yield
        finally:
            for name, (buffers, leaf) in self._places.items():
                left = buffers[leaf]
                buffers[leaf] = own[name]
                if left is None:
                    continue
                if name in others:
                    others[name] = left
                elif left is not weights[name]:  # the module has replaced the tensor
                    with torch.no_grad():
                        weights[name].copy_(left)

    def _set_mode(self, *, is_training: bool) -> None:
        if self._mode is is_training:
            return
        self._mode = is_training
        self._module.train(is_training)
        for name in self._tensors.frozen_statistics:  # in eval mode, layers use statistics and do not update them
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
