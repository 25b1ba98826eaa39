"""The way in which a server applies a round's mean update: it adds the update, or uses an optimiser.

FedAvgM: Tzu-Ming Harry Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019. FedAdam, FedYogi and FedAdagrad: Sashank Reddi et al., "Adaptive Federated Optimization", ICLR
2021, Algorithm 2.

In the formulas, x is the model, Δ is the mean update, and m and v are the state.

All rules are elementwise. So a model can be processed in pieces, and the size of the pieces changes no bit of the
result. The whole model is never in memory as float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import StateError
from fedstrata.experiment.sections import (
    AdagradSettings,
    AdamSettings,
    AdaptiveSettings,
    AnyServerOptimiser,
    DynamicSettings,
    MomentumSettings,
    NoOptimiserSettings,
    YogiSettings,
)
from fedstrata.tensors import Flat

State = tuple[Flat, ...]  # vectors as long as the model, or the same piece of each


class ServerOptimiser(Protocol):
    """Define the interface of a server's rule, which computes the next model. The object itself has no state. Callers
    keep the state, and pass it to each call.
    """

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the vectors that are kept with the model."""

    def initial_state(self, size: int) -> State:
        """Return the state before the first round, for a piece of `size` elements."""

    def step(self, model: Flat, update: Flat, state: State = (), share: float = 1.0) -> tuple[Flat, State]:
        """Return a piece of the next model, and the next state of this piece, as float32. They are computed from this
        piece of the present model, of the mean update and of the present state. `share` is the weight of the children
        that took part, divided by the weight of all children.

        Raises:
            StateError: the state does not have one vector of the piece's shape per name in `state_names`.
        """


def server_optimiser(settings: AnyServerOptimiser) -> ServerOptimiser:
    """Return the rule for an experiment's `training.lps_optimiser` or `training.gps_optimiser`, or for a method's
    `server_optimiser`.
    """
    match settings:
        case NoOptimiserSettings():
            return _Addition()
        case MomentumSettings():
            return _Momentum(settings)
        case AdamSettings() | YogiSettings() | AdagradSettings():
            return _Adaptive(settings)
        case DynamicSettings():
            return _Dynamic()


@dataclass(frozen=True)
class _Addition:
    """Compute x ← x + Δ, as FedAvg does."""

    state_names: tuple[str, ...] = ()

    def initial_state(self, size: int) -> State:
        return ()

    def step(self, model: Flat, update: Flat, state: State = (), share: float = 1.0) -> tuple[Flat, State]:
        _check(self, model, state)
        return model + update, ()


@dataclass(frozen=True)
class _Momentum:
    """Compute v ← momentum · v + Δ; x ← x + learning_rate · v."""

    settings: MomentumSettings
    state_names: tuple[str, ...] = ("velocity",)

    def initial_state(self, size: int) -> State:
        return (np.zeros(size, np.float32),)

    def step(self, model: Flat, update: Flat, state: State = (), share: float = 1.0) -> tuple[Flat, State]:
        _check(self, model, state)
        velocity = (self.settings.momentum * _wide(state[0]) + update).astype(np.float32)
        return _moved(model, self.settings.learning_rate * _wide(velocity)), (velocity,)


@dataclass(frozen=True)
class _Adaptive:
    """Compute m ← β₁ m + (1 − β₁) Δ, then v, then x ← x + learning_rate · m / (√v + τ), without bias correction.

    Adam has v ← β₂ v + (1 − β₂) Δ², Yogi v ← v − (1 − β₂) Δ² sign(v − Δ²), and Adagrad v ← v + Δ².
    """

    settings: AdaptiveSettings
    state_names: tuple[str, ...] = ("first_moment", "second_moment")

    def initial_state(self, size: int) -> State:
        """Return m = 0 and v = τ², the least value that the paper allows."""
        return np.zeros(size, np.float32), np.full(size, self.settings.tau**2, np.float32)

    def step(self, model: Flat, update: Flat, state: State = (), share: float = 1.0) -> tuple[Flat, State]:
        _check(self, model, state)
        settings, delta = self.settings, _wide(update)
        first = (settings.beta1 * _wide(state[0]) + (1 - settings.beta1) * delta).astype(np.float32)
        second = self._second(_wide(state[1]), delta).astype(np.float32)
        direction = _wide(first) / (np.sqrt(_wide(second)) + settings.tau)
        return _moved(model, settings.learning_rate * direction), (first, second)

    def _second(self, second: NDArray[np.float64], delta: NDArray[np.float64]) -> NDArray[np.float64]:
        match self.settings:
            case AdamSettings(beta2=beta2):
                return beta2 * second + (1 - beta2) * delta * delta
            case YogiSettings(beta2=beta2):
                return second - (1 - beta2) * delta * delta * np.sign(second - delta * delta)
            case AdagradSettings():
                return second + delta * delta


@dataclass(frozen=True)
class _Dynamic:
    """Compute v ← v + share · Δ; x ← x + Δ + v. In FedDyn's paper, v is −h / α."""

    state_names: tuple[str, ...] = ("correction",)

    def initial_state(self, size: int) -> State:
        return (np.zeros(size, np.float32),)

    def step(self, model: Flat, update: Flat, state: State = (), share: float = 1.0) -> tuple[Flat, State]:
        _check(self, model, state)
        correction = (_wide(state[0]) + share * _wide(update)).astype(np.float32)
        return _moved(model, _wide(update) + correction), (correction,)


def _check(optimiser: ServerOptimiser, model: Flat, state: Sequence[Flat]) -> None:
    expected = [model.shape] * len(optimiser.state_names)
    if [vector.shape for vector in state] != expected:
        told = [vector.shape for vector in state]
        raise StateError(f"the state {list(optimiser.state_names)} has vectors of shapes {told}; expected {expected}")


def _wide(values: Flat) -> NDArray[np.float64]:
    return values.astype(np.float64)


def _moved(model: Flat, by: NDArray[np.float64]) -> Flat:
    moved: Flat = (model + by).astype(np.float32)
    return moved
