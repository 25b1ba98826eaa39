"""Server-side optimisers against the papers' formulas in plain NumPy, and the same bits in pieces of any size."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedstrata.errors import StateError
from fedstrata.experiment.sections import (
    AdagradSettings,
    AdamSettings,
    DynamicSettings,
    MomentumSettings,
    NoOptimiserSettings,
    YogiSettings,
)
from fedstrata.optimisers.server_optimisers import ServerOptimiser, server_optimiser
from fedstrata.tensors import Flat

NONE = NoOptimiserSettings(name="none")
MOMENTUM = MomentumSettings(name="momentum", learning_rate=0.5, momentum=0.9)
ADAM = AdamSettings(name="adam", learning_rate=0.1, beta1=0.8, beta2=0.95, tau=0.01)
YOGI = YogiSettings(name="yogi", learning_rate=0.5, beta1=0.5, beta2=0.75, tau=2.0)
ADAGRAD = AdagradSettings(name="adagrad", learning_rate=0.5, tau=3.0)
ALL: list[Any] = [NONE, MOMENTUM, ADAM, YOGI, ADAGRAD, DynamicSettings()]


def drawn(rounds: int, size: int = 50) -> tuple[Flat, list[Flat]]:
    """A model and the mean updates of some rounds, of sizes from 1e-6 to 1."""
    rng = np.random.default_rng(rounds)
    scales = 10.0 ** rng.uniform(-6, 0, size)
    updates = [(rng.standard_normal(size) * scales).astype(np.float32) for _ in range(rounds)]
    return rng.standard_normal(size).astype(np.float32), updates


def run(optimiser: ServerOptimiser, model: Flat, updates: list[Flat]) -> Flat:
    state = optimiser.initial_state(len(model))
    for update in updates:
        model, state = optimiser.step(model, update, state)
        assert {vector.dtype for vector in (model, *state)} == {np.dtype(np.float32)}
    return model


def test_without_an_optimiser_the_mean_update_is_added_to_the_bit() -> None:
    model, (update,) = drawn(1, 10_000)
    following, state = server_optimiser(NONE).step(model, update)
    assert following.tobytes() == (model + update).tobytes()
    assert state == ()


def test_momentum_of_three_equal_updates_can_be_redone_by_hand() -> None:
    optimiser = server_optimiser(MomentumSettings(name="momentum", learning_rate=0.5, momentum=0.5))
    found = run(optimiser, np.float32([10, 0]), [np.float32([4, -8])] * 3)
    # v: 4, 6, 7, so 10 + ½ (4 + 6 + 7)
    np.testing.assert_array_equal(found, np.float32([18.5, -17]))


def test_momentum_is_torchs_sgd_with_the_update_as_negative_gradient() -> None:
    model, updates = drawn(12)
    leaf = torch.tensor(model.astype(np.float64), requires_grad=True)
    sgd = torch.optim.SGD([leaf], lr=0.5, momentum=0.9)
    for update in updates:
        leaf.grad = -torch.tensor(update.astype(np.float64))
        sgd.step()
    np.testing.assert_allclose(run(server_optimiser(MOMENTUM), model, updates), leaf.detach().numpy(), atol=2e-6)


def test_adams_first_step_can_be_redone_by_hand() -> None:
    settings = AdamSettings(name="adam", learning_rate=0.5, beta1=0.5, beta2=0.75, tau=1.0)
    # m = ½ · 4 = 2; v = ¾ · 1² + ¼ · 4² = 4.75
    found = run(server_optimiser(settings), np.float32([1]), [np.float32([4])])
    np.testing.assert_allclose(found, [1 + 0.5 * 2 / (np.sqrt(4.75) + 1)], rtol=1e-7)


def test_yogis_steps_can_be_redone_by_hand() -> None:
    # v is 4 at first. Δ = 4: m = 2 and v = 4 + ¼ · 16 = 8. Δ = 1: m = 1.5 and v = 8 − ¼ · 1 = 7.75.
    found = run(server_optimiser(YOGI), np.float32([1]), [np.float32([4]), np.float32([1])])
    np.testing.assert_allclose(found, [1 + 0.5 * 2 / (8**0.5 + 2) + 0.5 * 1.5 / (7.75**0.5 + 2)], rtol=1e-7)


def test_adagrads_steps_can_be_redone_by_hand() -> None:
    # v is 9 at first, then 9 + 4² = 25, then 25 + 12² = 169; with beta1 0, m is the update
    found = run(server_optimiser(ADAGRAD), np.float32([1]), [np.float32([4]), np.float32([12])])
    np.testing.assert_allclose(found, [1 + 0.5 * 4 / (5 + 3) + 0.5 * 12 / (13 + 3)], rtol=1e-7)


def test_adam_follows_algorithm_2_of_the_paper() -> None:
    model, updates = drawn(15)
    expected = adam_of_the_paper(model, updates, rate=0.1, beta1=0.8, beta2=0.95, tau=0.01)
    found = run(server_optimiser(ADAM), model, updates)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    assert np.abs(found - model).max() > 0.1


def adam_of_the_paper(
    model: Flat, updates: list[Flat], *, rate: float, beta1: float, beta2: float, tau: float
) -> NDArray[np.float64]:
    """x by closed sums over all rounds in place of recurrences."""
    x = model.astype(np.float64)
    deltas = np.array(updates, np.float64)
    for t in range(len(deltas)):
        ages = np.arange(t, -1, -1)[:, None]
        m = ((1 - beta1) * beta1**ages * deltas[: t + 1]).sum(0)
        v = beta2 ** (t + 1) * tau**2 + ((1 - beta2) * beta2**ages * deltas[: t + 1] ** 2).sum(0)
        x = x + rate * m / (np.sqrt(v) + tau)
    return x


@pytest.mark.parametrize("settings", ALL, ids=lambda each: each.name)
@given(cuts=st.lists(st.integers(0, 50), max_size=4))
def test_pieces_of_any_size_give_the_same_bits(settings: Any, cuts: list[int]) -> None:
    optimiser = server_optimiser(settings)
    model, updates = drawn(3)
    bounds = [0, *sorted(cuts), 50]
    pieces = [run(optimiser, model[a:b], [each[a:b] for each in updates]) for a, b in pairwise(bounds)]
    assert np.concatenate(pieces).tobytes() == run(optimiser, model, updates).tobytes()


@pytest.mark.parametrize("settings", ALL, ids=lambda each: each.name)
def test_what_a_step_is_given_stays_as_it_was(settings: Any) -> None:
    optimiser = server_optimiser(settings)
    model, (update,) = drawn(1)
    state = optimiser.initial_state(50)
    before = [vector.copy() for vector in (model, update, *state)]
    optimiser.step(model, update, state)
    for vector, copy in zip((model, update, *state), before, strict=True):
        np.testing.assert_array_equal(vector, copy)


@pytest.mark.parametrize(
    ("settings", "names"), [(NONE, ()), (MOMENTUM, ("velocity",)), (ADAM, ("first_moment", "second_moment"))]
)
def test_a_state_that_does_not_fit_is_refused(settings: Any, names: tuple[str, ...]) -> None:
    optimiser = server_optimiser(settings)
    assert optimiser.state_names == names
    model, (update,) = drawn(1)
    for wrong in ([*optimiser.initial_state(50), model], list(optimiser.initial_state(49))):
        if wrong:
            with pytest.raises(StateError, match=r"has vectors of shapes .*; expected"):
                optimiser.step(model, update, tuple(wrong))
