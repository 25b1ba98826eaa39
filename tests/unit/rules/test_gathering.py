"""Sums by stream: however devices are split over LPSs and whoever comes first, each stream has the same bits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedstrata.errors import PayloadError
from fedstrata.rules import Gathering, Route
from fedstrata.streams.streams import WEIGHT_GRID
from fedstrata.tensors import Flat
from tests.support.gatherings import MEAN, from_lpss, one_stream, planned, sums_in
from tests.support.two_layers import STREAMS

CLUSTERS = 3
SIZES = STREAMS.vector(CLUSTERS).sizes  # 3, then 2 for each cluster
COUNT = len(SIZES)


@dataclass(frozen=True)
class Child:
    """A device: its cluster, its examples, its shares in the heads where these are mixed, and its update."""

    cluster: int
    examples: int
    shares: tuple[int, ...]
    update: Flat

    def routes(self, *, is_mixed: bool) -> list[Route]:
        shares = {"head": dict(enumerate(self.shares))} if is_mixed else {}
        return STREAMS.vector(CLUSTERS).routes(self.cluster, self.examples, shares)

    def most(self, *, is_mixed: bool) -> list[int]:
        shares = {"head": dict(enumerate(self.shares))} if is_mixed else {}
        return STREAMS.vector(CLUSTERS).weights(self.cluster, self.examples, shares)


share = st.integers(0, WEIGHT_GRID)
flat: st.SearchStrategy[Flat] = hnp.arrays(np.float32, 5, elements=st.floats(-100, 100, width=32))
child = st.builds(Child, st.integers(0, CLUSTERS - 1), st.integers(1, 500), st.tuples(share, share, share), flat)
children = st.lists(child, min_size=1, max_size=8)


def routed(devices: Mapping[str, Child], *, is_mixed: bool, cut: int = 5) -> Gathering:
    """The sums of an LPS with these devices, each of which sends its update in two chunks."""
    routes = {name: device.routes(is_mixed=is_mixed) for name, device in devices.items()}
    sums = planned(SIZES, routes, {name: device.examples for name, device in devices.items()})
    for start, stop in ((0, cut), (cut, 5)):
        for name, device in devices.items():
            sums.take(name, start, device.update[start:stop], (device.examples,))
    for name, device in devices.items():
        sums.check(name, (device.examples,))
        sums.accept(name, (device.examples,))
    return sums


def added(lpss: Sequence[Gathering], most: Sequence[Sequence[int]], cut: int = 0) -> Gathering:
    """What a GPS has after these LPSs have sent their exact parts, each in two chunks."""
    total = from_lpss(SIZES, {str(n): weights for n, weights in enumerate(most)})
    for number, sums in enumerate(lpss):
        weights = [stream.num_examples for stream in sums_in(sums)]
        total.check(str(number), weights)
        values = np.concatenate([stream.sums() for stream in sums_in(sums)])
        for start, stop in ((0, cut), (cut, len(values))):
            total.take(str(number), start, values[start:stop], weights)
        total.accept(str(number), weights)
    return total


def bits(sums: Gathering) -> list[bytes | None]:
    """Each stream's mean, None of one that nobody is in."""
    return [stream.mean().tobytes() if stream.num_examples else None for stream in sums_in(sums)]


@settings(max_examples=40, deadline=None)
@given(children, st.data(), st.booleans())
def test_any_split_of_devices_over_lpss_and_any_order_of_arrival_give_the_same_bits(
    drawn: list[Child], data: st.DataObject, is_mixed: bool
) -> None:
    named = {f"device-{index}": device for index, device in enumerate(drawn)}
    order = data.draw(st.permutations(sorted(named)))
    homes = data.draw(st.lists(st.integers(0, 2), min_size=len(named), max_size=len(named)))
    cut = data.draw(st.integers(0, 5))
    of_lps = [
        {name: named[name] for name, home in zip(order, homes, strict=True) if home == number} for number in range(3)
    ]
    lpss = [routed(devices, is_mixed=is_mixed, cut=cut) for devices in of_lps]
    most = [
        [
            sum(column)
            for column in zip([0] * COUNT, *(d.most(is_mixed=is_mixed) for d in devices.values()), strict=True)
        ]
        for devices in of_lps
    ]
    total = added(lpss, most, data.draw(st.integers(0, sum(SIZES))))
    assert bits(total) == bits(routed(named, is_mixed=is_mixed))


@settings(max_examples=25, deadline=None)
@given(children, st.booleans())
def test_the_mean_of_a_stream_is_the_float64_mean_of_those_who_have_a_part_in_it(
    drawn: list[Child], is_mixed: bool
) -> None:
    sums = routed({f"device-{index}": device for index, device in enumerate(drawn)}, is_mixed=is_mixed)
    updates = np.stack([device.update.astype(np.float64) for device in drawn])
    for number, stream in enumerate(sums_in(sums)):
        weights = [device.most(is_mixed=is_mixed)[number] for device in drawn]
        if any(weights):
            part = updates[:, :3] if number == 0 else updates[:, 3:]
            expected = np.average(part, axis=0, weights=weights)
            np.testing.assert_allclose(stream.mean(), expected, rtol=2**-23, atol=2**-32)


@settings(max_examples=25, deadline=None)
@given(children)
def test_one_stream_for_all_is_the_sum_that_one_vector_has(drawn: list[Child]) -> None:
    named = {f"device-{index}": device for index, device in enumerate(drawn)}
    one = one_stream(3, {name: device.examples for name, device in named.items()})
    for name, device in named.items():
        one.take(name, 0, device.update[:3], (device.examples,))
        one.accept(name, (device.examples,))
    assert routed(named, is_mixed=False).totals[0].mean().tobytes() == sums_in(one)[0].mean().tobytes()


# --- numbers to redo by hand ----------------------------------------------------------------------


def f32(*values: float) -> Flat:
    return np.array(values, np.float32)


A = Child(0, 1, (0, 0, 0), f32(1, 1, 1, 10, 10))
B = Child(1, 3, (0, 0, 0), f32(5, 5, 5, 20, 20))


def test_shared_layers_count_everybody_and_heads_their_own_cluster() -> None:
    shared, *heads = routed({"a": A, "b": B}, is_mixed=False).totals
    assert shared.mean().tolist() == [4.0] * 3  # (1 · 1 + 3 · 5) / 4
    assert [head.num_examples for head in heads] == [1, 3, 0]
    assert heads[0].mean().tolist() == [10.0] * 2
    assert heads[1].mean().tolist() == [20.0] * 2


def test_a_mixed_stream_counts_devices_of_all_clusters_by_their_shares() -> None:
    half = WEIGHT_GRID // 2
    one, other = (
        Child(c.cluster, c.examples, shares, c.update) for c, shares in ((A, (half, 0, half)), (B, (half, half, 0)))
    )
    shared, first, second, third = routed({"a": one, "b": other}, is_mixed=True).totals
    assert shared.mean()[0] == 4.0  # not mixed: by examples
    assert [head.mean()[0] for head in (first, second, third)] == [15.0, 20.0, 10.0]


def test_a_whole_value_is_added_as_often_as_the_update_that_is_relative_to_it_counts() -> None:
    sums = routed({"a": A, "b": B}, is_mixed=False)
    sums_in(sums)[0].shift(f32(100, 200, 300), 4)
    assert sums_in(sums)[0].mean().tolist() == [104.0, 204.0, 304.0]


def test_where_lpss_had_rounds_of_their_own_their_differences_count_by_weight() -> None:
    total = from_lpss([2], {"lps-0": [4], "lps-1": [4]}, MEAN)
    for name, weight, value in (("lps-0", 1, 1.0), ("lps-1", 3, 5.0)):
        total.take(name, 0, f32(value, -value), [weight])
        total.accept(name, [weight])
    assert sums_in(total)[0].mean().tolist() == [4.0, -4.0]


def test_an_lps_without_devices_in_a_stream_adds_nothing_to_it() -> None:
    total = from_lpss([1, 1], {"lps-0": [4, 4]}, MEAN)
    total.take("lps-0", 0, f32(1, 7), [4, 0])
    total.accept("lps-0", [4, 0])
    assert [stream.num_examples for stream in sums_in(total)] == [4, 0]


@pytest.mark.parametrize("cleared", ["routed", "partial", "one"])
def test_a_sum_that_was_cleared_holds_nothing_of_what_was_added(cleared: str) -> None:
    lps = routed({"a": A}, is_mixed=False)
    gps = added([lps], [A.most(is_mixed=False)])
    one = one_stream(5, {"a": 1})
    one.take("a", 0, A.update, (1,))
    one.accept("a", (1,))
    sums: Any = {"routed": lps, "partial": gps, "one": one}[cleared]
    sums.clear()
    for stream in [sums_in(sums)[0]] if cleared == "one" else sums_in(sums):
        assert stream.num_examples == 0
        assert not stream.sums().any()


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [(), (0,), (4,), (-1,), (1, 1)])
def test_a_child_stands_for_one_up_to_its_own_examples(weights: tuple[int, ...]) -> None:
    with pytest.raises(PayloadError, match="from 1 to 3"):
        one_stream(5, {"b": 3}).check("b", weights)


@pytest.mark.parametrize("weights", [(), (2,), (4,), (3, 3)])
def test_where_weights_are_the_plans_a_child_says_the_examples_it_enrolled_with(weights: tuple[int, ...]) -> None:
    sums = planned(SIZES, {"b": B.routes(is_mixed=False)}, {"b": 3})
    sums.check("b", (3,))
    with pytest.raises(PayloadError, match=r"b states the weights .*; expected one, 3"):
        sums.check("b", weights)


@pytest.mark.parametrize("weights", [[], [4, 4, 0], [5, 4], [4, -1]])
def test_an_lps_has_at_most_the_weights_of_its_devices_in_each_stream(weights: list[int]) -> None:
    sums = from_lpss([1, 1], {"lps-0": [4, 4], "lps-1": [9, 9]})
    sums.check("lps-0", [4, 0])
    with pytest.raises(PayloadError, match=r"expected at most \[4, 4\]"):
        sums.check("lps-0", weights)


def test_a_partial_sum_beyond_what_its_weight_comes_to_is_refused_and_adds_nothing() -> None:
    sums = from_lpss([1], {"lps-0": [1], "lps-1": [4095]})
    limit = int(sums_in(sums)[0].limit * 2**32)
    assert limit == 2**50  # 2¹⁸ · 2³²
    for value in (limit + 1, -limit - 1, 2**63 - 1, -(2**63)):
        with pytest.raises(PayloadError, match="with 1 examples they can be at most"):
            sums.take("lps-0", 0, np.array([value], np.int64), [1])
    sums.take("lps-0", 0, np.array([limit], np.int64), [1])
    sums.accept("lps-0", [1])
    assert sums_in(sums)[0].mean().tolist() == [2.0**18]


def test_values_that_cannot_be_summed_exactly_are_refused_by_every_kind_of_sum() -> None:
    bad = f32(np.nan)
    kinds: list[Any] = [
        one_stream(5, {"a": 1}),
        planned(SIZES, {"a": A.routes(is_mixed=False)}, {"a": 1}),
        from_lpss(SIZES, {"a": [1] * COUNT}, MEAN),
    ]
    for sums in kinds:
        with pytest.raises(PayloadError, match="must be finite"):
            sums.take("a", 0, bad, [1] * COUNT)
