"""The optimisers of local training: how the tensors of one training move against their gradients.

A training makes its optimiser, which holds its own state, such as velocities.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from fedstrata.experiment import SgdSettings


class Optimiser(Protocol):
    """Moves the tensors of one training."""

    def move(self, gradients: Sequence[torch.Tensor]) -> None:
        """Move each tensor against its gradient, in place, outside autograd; the gradients are overwritten."""


def optimiser_of(settings: SgdSettings, global_round: int, leaves: Sequence[torch.Tensor]) -> Optimiser:
    """Return the optimiser that an experiment's `training.optimiser` names, for these tensors in a global round."""
    return _ByLeaf(Sgd(settings, global_round), leaves)


class _ByLeaf:
    """SGD, tensor by tensor."""

    def __init__(self, sgd: "Sgd", leaves: Sequence[torch.Tensor]) -> None:
        self._sgd = sgd
        self._parts = [(leaf, sgd.velocity_of(leaf)) for leaf in leaves]

    def move(self, gradients: Sequence[torch.Tensor]) -> None:
        """Move the tensors."""
        for (leaf, velocity), gradient in zip(self._parts, gradients, strict=True):
            self._sgd.move(leaf, velocity, gradient)


class Sgd:
    """The steps of torch.optim.SGD, to the bit, without its bookkeeping; momentum starts at zero."""

    def __init__(self, settings: SgdSettings, global_round: int) -> None:
        self._learning_rate = learning_rate(settings, global_round)
        self._weight_decay = settings.weight_decay
        self._momentum = settings.momentum

    def velocity_of(self, leaf: torch.Tensor) -> torch.Tensor | None:
        """Return the velocity that momentum keeps of a leaf; None without momentum."""
        return torch.zeros_like(leaf, requires_grad=False) if self._momentum else None

    def move(self, leaf: torch.Tensor, velocity: torch.Tensor | None, gradient: torch.Tensor) -> None:
        """Move a leaf against its gradient, in place; the gradient is overwritten."""
        if self._weight_decay:
            gradient.add_(leaf, alpha=self._weight_decay)
        if velocity is not None:
            gradient = velocity.mul_(self._momentum).add_(gradient)
        leaf.add_(gradient, alpha=-self._learning_rate)


def learning_rate(settings: SgdSettings, global_round: int) -> float:
    """Return the learning rate of a global round, counted from 0, by the schedule."""
    return settings.learning_rate * settings.schedule.decay ** (global_round // settings.schedule.every)
