"""Exact sums: no order of arrival changes a bit, and what the grid cannot hold is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedstrata.errors import NoUpdatesError, PayloadError
from fedstrata.tensors import ExactSum, Flat
from fedstrata.tensors.exact_sum import PIECE, check_values

MAX_EXAMPLES = 4000  # a power of two times 2¹⁸ would be 4096: the limit is then a little above 2¹⁸


def f32(*values: float) -> Flat:
    return np.array(values, np.float32)


def finite(size: int, limit: float = 1000.0) -> st.SearchStrategy[Flat]:
    elements: st.SearchStrategy[Any] = st.floats(-limit, limit, width=32)
    return hnp.arrays(np.float32, size, elements=elements)


@st.composite
def updates_in_two_orders(draw: st.DrawFn) -> tuple[list[tuple[Flat, int]], list[int]]:
    updates = draw(st.lists(st.tuples(finite(5), st.integers(1, 100)), min_size=2, max_size=8))
    return updates, draw(st.permutations(range(len(updates))))


@given(updates_in_two_orders())
def test_the_order_of_arrival_cannot_change_a_bit(case: tuple[list[tuple[Flat, int]], list[int]]) -> None:
    updates, order = case
    one, other = ExactSum(5, MAX_EXAMPLES), ExactSum(5, MAX_EXAMPLES)
    for values, examples in updates:
        one.add(values, examples)
    for index in order:
        other.add(*updates[index])
    assert one.mean().tobytes() == other.mean().tobytes()


@given(updates_in_two_orders(), st.integers(1, 4))
def test_chunks_of_different_children_may_interleave(case: tuple[list[tuple[Flat, int]], list[int]], cut: int) -> None:
    updates, order = case
    whole, interleaved = ExactSum(5, MAX_EXAMPLES), ExactSum(5, MAX_EXAMPLES)
    for values, examples in updates:
        whole.add(values, examples)
    for index in order:
        interleaved.fold(cut, updates[index][0][cut:], updates[index][1])
    for values, examples in updates:
        interleaved.fold(0, values[:cut], examples)
        interleaved.count(examples)
    assert whole.mean().tobytes() == interleaved.mean().tobytes()


@given(st.lists(st.tuples(finite(3, limit=8.0), st.integers(1, 50)), min_size=1, max_size=6))
def test_the_mean_is_the_float64_mean_to_the_grid(updates: list[tuple[Flat, int]]) -> None:
    total = ExactSum(3, MAX_EXAMPLES)
    for values, examples in updates:
        total.add(values, examples)
    weights = [examples for _, examples in updates]
    expected = np.average([values.astype(np.float64) for values, _ in updates], axis=0, weights=weights)
    np.testing.assert_allclose(total.mean(), expected, rtol=2**-24, atol=2**-32)


def test_a_device_with_three_times_the_examples_counts_three_times() -> None:
    total = ExactSum(2, 4)
    total.add(f32(1, -2), num_examples=1)
    total.add(f32(5, 2), num_examples=3)
    assert total.mean().tolist() == [4.0, 1.0]


def test_values_that_cancel_leave_nothing() -> None:
    total = ExactSum(1, 3)
    for value in (2.0**17, 1e-6, -(2.0**17)):
        total.add(f32(value), 1)
    assert total.mean()[0] == pytest.approx(1e-6 / 3, abs=2**-32)


def test_a_vector_longer_than_a_piece_is_summed_whole() -> None:
    size = 2 * PIECE + 3
    values = np.arange(size, dtype=np.float32)
    total = ExactSum(size, 8)
    total.add(values, 3)
    total.add(values, 5)
    assert np.array_equal(total.mean(), values)
    assert np.array_equal(total.mean(PIECE - 1, PIECE + 2), values[PIECE - 1 : PIECE + 2])


def test_the_largest_values_allowed_do_not_overflow() -> None:
    for examples in (1, 4096, 10**6):
        total = ExactSum(2, examples)
        total.add(f32(total.limit, -total.limit), examples)
        assert total.mean().tolist() == [np.float32(total.limit), -np.float32(total.limit)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**18 + 1, -(2.0**19)])
def test_what_the_grid_cannot_hold_is_refused_and_adds_nothing(bad: float) -> None:
    total = ExactSum(3, 10)
    total.add(f32(1, 1, 1), 1)
    with pytest.raises(PayloadError, match="must be finite and within ±262144"):
        total.fold(0, f32(7, bad, 7), 1)
    assert total.mean().tolist() == [1.0, 1.0, 1.0]


def test_more_examples_leave_less_room_for_values() -> None:
    assert ExactSum(1, 2**12).limit == 2.0**18
    assert ExactSum(1, 2**20).limit == 2.0**10
    with pytest.raises(PayloadError, match="within ±1024"):
        check_values(f32(1025), ExactSum(1, 2**20).limit)


def test_examples_beyond_those_expected_are_refused() -> None:
    total = ExactSum(1, 5)
    total.count(3)
    for more in (3, 0, -1):
        with pytest.raises(PayloadError, match="exceed the sum's limit, 5"):
            total.count(more)
    with pytest.raises(PayloadError, match="at least 1 example"):
        ExactSum(1, 0)


def test_an_empty_sum_has_no_mean() -> None:
    total = ExactSum(2, 5)
    with pytest.raises(NoUpdatesError):
        total.mean()
    total.add(f32(1, 2), 5)
    total.clear()
    with pytest.raises(NoUpdatesError):
        total.mean()
    total.add(f32(3, 4), 5)
    assert total.mean().tolist() == [3.0, 4.0]


def test_a_sum_of_no_elements_counts_its_examples() -> None:
    total = ExactSum(0, 2)
    total.add(f32(), 2)
    assert total.mean().shape == (0,)
