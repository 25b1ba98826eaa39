"""The optimisers of local training. An optimiser changes the tensors of a model by their gradients.

Each optimiser computes the same bits as the class of the same name in torch. An optimiser has a state, such as
velocities, so each training constructs a new one. This module calls torch's optimiser functions instead of torch's
classes. The classes would load torch's compiler, which takes 1.5 s of CPU time per process.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.rmsprop import rmsprop

from fedstrata.errors import ExperimentError
from fedstrata.experiment import LocalOptimiserSettings, SgdSettings, TrainingSettings
from fedstrata.experiment.sections import (
    CosineSchedule,
    LocalAdagradSettings,
    LocalAdamSettings,
    LocalAdamWSettings,
    LocalRmspropSettings,
)
from fedstrata.tensors.processor import read

State = Mapping[str, NDArray[Any]]  # float32 vectors as long as all leaves together, and `steps`, int64 of shape (1,)
STEPS = "steps"


class Optimiser(Protocol):
    """Define the interface of an optimiser. An optimiser changes the tensors of one training."""

    def move(self, gradients: Sequence[torch.Tensor]) -> None:
        """Change each tensor in place, by its gradient. Call this with autograd switched off. The gradients stay as
        they are.
        """

    def state(self) -> State:
        """Return a copy of the state with which a later training can begin."""


def optimiser_of(
    training: TrainingSettings, global_round: int, leaves: Sequence[torch.Tensor], state: State
) -> Optimiser:
    """Return the optimiser that `training.optimiser` names, for these tensors and with the learning rate of this global
    round.

    The optimiser begins with `state`, which comes from an earlier training. If `state` is empty, the optimiser begins
    from zero.
    """
    settings, rate = training.optimiser, learning_rate(training, global_round)
    if isinstance(settings, SgdSettings):
        return _ByLeaf(Sgd(settings, rate), leaves, state)
    return _ByTorch(settings, rate, leaves, state)


def learning_rate(training: TrainingSettings, global_round: int) -> float:
    """Return the learning rate that the schedule gives for a global round. Global rounds are counted from 0."""
    schedule, rate = training.optimiser.schedule, training.optimiser.learning_rate
    later = global_round - schedule.warm_up_rounds
    if later < 0:
        return rate * (global_round + 1) / (schedule.warm_up_rounds + 1)
    if isinstance(schedule, CosineSchedule):
        share = later / max(1, training.global_rounds - schedule.warm_up_rounds)
        return rate * (schedule.floor + (1 - schedule.floor) * (1 + math.cos(math.pi * share)) / 2)
    return rate * schedule.decay ** (later // schedule.every)


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a dense tensor. With `sparse=True`, a layer such as torch.nn.Embedding has sparse gradients.
    Only plain SGD, momentum and plain Adagrad accept them.
    """
    return gradient.to_dense() if gradient.is_sparse else gradient


def clipped(gradients: Sequence[torch.Tensor], most: float) -> list[torch.Tensor]:
    """Return gradients, scaled so that the L2 norm of all gradients together is at most `most`.
    torch.nn.utils.clip_grad_norm_ does the same in place.
    """
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
    share = (most / (norm + 1e-6)).clamp(max=1.0)
    return [gradient.mul(share) for gradient in gradients]


class _ByLeaf:
    """Apply SGD tensor by tensor."""

    def __init__(self, sgd: "Sgd", leaves: Sequence[torch.Tensor], state: State) -> None:
        velocities: Sequence[torch.Tensor | None] = [sgd.velocity_of(leaf) for leaf in leaves]
        if state:
            velocities = split(state["velocity"], leaves)
        self._sgd = sgd
        self._parts = list(zip(leaves, velocities, strict=True))

    def move(self, gradients: Sequence[torch.Tensor]) -> None:
        """Change the tensors by their gradients."""
        for (leaf, velocity), gradient in zip(self._parts, gradients, strict=True):
            self._sgd.move(leaf, velocity, gradient)

    def state(self) -> State:
        """Return the velocities."""
        return {"velocity": flat([velocity for _, velocity in self._parts if velocity is not None])}


class Sgd:
    """Compute the steps of torch.optim.SGD with the same bits, but less overhead. Momentum starts at zero."""

    def __init__(self, settings: SgdSettings, rate: float) -> None:
        """Use these settings, and this learning rate of the round."""
        self._learning_rate = rate
        self._weight_decay = settings.weight_decay
        self._momentum = settings.momentum
        self._is_nesterov = settings.nesterov

    def velocity_of(self, leaf: torch.Tensor) -> torch.Tensor | None:
        """Return an initial velocity for a tensor, which is zero. Without momentum, return None."""
        return torch.zeros_like(leaf, requires_grad=False) if self._momentum else None

    def move(self, leaf: torch.Tensor, velocity: torch.Tensor | None, gradient: torch.Tensor) -> None:
        """Change a tensor in place, by its gradient, which stays as it is."""
        if self._weight_decay or self._is_nesterov:
            gradient = dense(gradient)
        if self._weight_decay:
            gradient = gradient.add(leaf, alpha=self._weight_decay)
        if velocity is not None:
            velocity.mul_(self._momentum).add_(gradient)
            gradient = gradient.add(velocity, alpha=self._momentum) if self._is_nesterov else velocity
        leaf.add_(gradient, alpha=-self._learning_rate)


class _ByTorch:
    """Apply one of torch's optimisers with moments, such as Adam."""

    def __init__(
        self, settings: LocalOptimiserSettings, rate: float, leaves: Sequence[torch.Tensor], state: State
    ) -> None:
        self._leaves = [leaf.detach() for leaf in leaves]  # views of the same memory
        self._function, names, own = _torchs(settings)
        self._vectors = {
            name: split(state[name], leaves) if state else [torch.zeros_like(leaf) for leaf in self._leaves]
            for name in names
        }
        steps = float(state[STEPS][0]) if state else 0.0
        self._steps = [torch.tensor(steps) for _ in leaves]
        self._options = {**own, "lr": rate, "weight_decay": settings.weight_decay, "maximize": False}

    def move(self, gradients: Sequence[torch.Tensor]) -> None:
        """Change the tensors by their gradients."""
        takes_sparse = self._function is adagrad and not self._options["weight_decay"]
        given = gradients if takes_sparse else [dense(each) for each in gradients]
        self._function(
            self._leaves, list(given), **self._vectors, state_steps=self._steps, foreach=False, **self._options
        )

    def state(self) -> State:
        """Return the moments, and the number of steps so far."""
        vectors = {name: flat(tensors) for name, tensors in self._vectors.items()}
        return {**vectors, STEPS: np.array([int(self._steps[0].item())])}


def _torchs(settings: LocalOptimiserSettings) -> tuple[Callable[..., None], tuple[str, ...], dict[str, Any]]:
    """Return torch's function for the optimiser, the names of the vectors in its state, and its options."""
    match settings:
        case LocalAdamSettings() | LocalAdamWSettings():
            beta1, beta2 = settings.betas
            shares = {"beta1": beta1, "beta2": beta2, "amsgrad": False, "max_exp_avg_sqs": []}
            function = adam if settings.name == "adam" else adamw
            return function, ("exp_avgs", "exp_avg_sqs"), {**shares, "eps": settings.epsilon}
        case LocalRmspropSettings():
            vectors = ("square_avgs", *(["momentum_buffer_list"] if settings.momentum else []))
            options: dict[str, Any] = {
                "alpha": settings.alpha,
                "momentum": settings.momentum,
                "centered": False,
                "grad_avgs": [],
            }
            if not settings.momentum:
                options["momentum_buffer_list"] = []
            return rmsprop, vectors, {**options, "eps": settings.epsilon}
        case LocalAdagradSettings():
            return adagrad, ("state_sums",), {"lr_decay": 0.0, "eps": settings.epsilon}
    raise ExperimentError(f"training.optimiser.name: torch has no optimiser with moments called {settings.name}")


def flat(tensors: Sequence[torch.Tensor]) -> NDArray[np.float32]:
    """Return a copy of tensors as one vector."""
    vector: NDArray[np.float32] = read(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]))
    return vector


def split(vector: NDArray[np.float32], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a vector as tensors with the shapes of `leaves`. They are copies in memory that torch allocates, so that
    their alignment is always the same.
    """
    ends = np.cumsum([leaf.numel() for leaf in leaves])
    parts = np.split(vector, ends[:-1])
    return [leaf.new_tensor(part).reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
