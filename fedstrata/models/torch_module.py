"""A model from a torch module, for architectures of one's own. All three tiers then need torch."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from fedstrata.errors import ExperimentError
from fedstrata.models.model import Model, tensors_of
from fedstrata.tensors import Flat, Layout

if TYPE_CHECKING:
    import numpy as np
    import torch

_turn = threading.RLock()  # torch has one generator for all threads, and a module one mode and one set of weights


def from_module(module_factory: "Callable[[], torch.nn.Module]", shared: Iterable[str]) -> Model:
    """Return the model of a torch module. GPS and LPS build it too, so they also need torch.

    A local step runs the module in training mode, and a measurement in eval mode. Its draws from torch's generator,
    such as masks of dropout, are a function of seed, device, round and step. The tensors of the model are the
    parameters that train. Parameters with `requires_grad=False` and buffers with `persistent=False` do not train or
    travel. Every device makes them with `module_factory()` under the experiment's seed. A module with running
    statistics is refused.

    Args:
        module_factory: Function that makes the module. It may draw from torch's global generator only.
        shared: Names of the layers that all clusters share by default, such as `["conv1"]`.
    """
    module = _seeded(module_factory, seed=0)
    _check(module)
    layout = Layout.of({name: parameter.shape for name, parameter in _training(module)})

    def initial(seed: int) -> Flat:
        made = _seeded(module_factory, seed)
        return layout.flatten({name: parameter.detach().numpy() for name, parameter in _training(made)})

    forward = _Forward(module)
    return _ModuleModel(
        layout=layout,
        shared=tensors_of(layout, shared),
        initial=initial,
        outputs=forward.measured,
        dropping=forward.trained,
        module_factory=module_factory,
    )


@dataclass(frozen=True, kw_only=True)
class _ModuleModel(Model):
    """A model that computes a torch module's forward."""

    module_factory: "Callable[[], torch.nn.Module]"

    def of_run(self, seed: int) -> Self:
        """Return the same model, with what its module has beside the weights drawn by this seed."""
        forward = _Forward(_seeded(self.module_factory, seed))
        return replace(self, outputs=forward.measured, dropping=forward.trained)


class _Forward:
    """A module's forward with weights from outside: a function of its arguments, whichever thread calls it."""

    def __init__(self, module: "torch.nn.Module") -> None:
        self._module = module

    def measured(
        self, weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor", **more: "torch.Tensor"
    ) -> "torch.Tensor":
        """Return the outputs in eval mode."""
        return self._computed(weights, inputs, more, is_training=False, seed=0)

    def trained(
        self,
        weights: "Mapping[str, torch.Tensor]",
        inputs: "torch.Tensor",
        rng: "np.random.Generator",
        **more: "torch.Tensor",
    ) -> "torch.Tensor":
        """Return the outputs in training mode, by the draws that follow from the next one of `rng`."""
        return self._computed(weights, inputs, more, is_training=True, seed=int(rng.integers(1 << 63)))

    def _computed(
        self,
        weights: "Mapping[str, torch.Tensor]",
        inputs: "torch.Tensor",
        more: "Mapping[str, torch.Tensor]",
        *,
        is_training: bool,
        seed: int,
    ) -> "torch.Tensor":
        from torch.func import functional_call

        with _turn, _drawing(seed):
            if self._module.training != is_training:
                self._module.train(is_training)
            outputs: torch.Tensor = functional_call(self._module, dict(weights), (inputs,), dict(more))
        return outputs


@contextmanager
def _drawing(seed: int) -> "Iterator[None]":
    """Draw from torch's generator by this seed, and leave the generator as it was."""
    import torch

    # 2 µs, where torch.random.fork_rng and torch.manual_seed, which look for GPUs, take 100
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


def _seeded(module_factory: "Callable[[], torch.nn.Module]", seed: int) -> "torch.nn.Module":
    """Return a new module drawn from this seed."""
    with _turn, _drawing(seed):
        return module_factory()


def _training(module: "torch.nn.Module") -> "Iterator[tuple[str, torch.nn.Parameter]]":
    """Return the parameters that train, by name."""
    return ((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)


def _check(module: "torch.nn.Module") -> None:
    import torch

    parameters = dict(module.named_parameters(remove_duplicate=False))
    kept = [name for name in module.state_dict() if name not in parameters]
    if kept:
        raise ExperimentError(
            f"the module keeps {', '.join(kept)} beside its parameters, which do not travel; use a normalisation "
            "without running statistics, and register constants with persistent=False"
        )
    training = dict(_training(module))
    if not training:
        raise ExperimentError("no parameter of the module trains: requires_grad is False for all; set it for some")
    for name, parameter in training.items():
        if parameter.dtype != torch.float32:
            raise ExperimentError(f"parameter {name} is {parameter.dtype}; weights are float32")
