"""When transfers end: alone, one after the other, and fairly shared."""

import doctest
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import product
from random import Random
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.experiment.rates import SECOND_NS, end_of
from fedstrata.links import shared_link
from fedstrata.links.shared_link import FairLink, Flow, fair_ends
from fedstrata.links.tier_links import Line, drawn_latency
from tests.support.link_accounts import course_from, fluid, fluid_ends

FLOWS = st.lists(
    st.builds(
        Flow,
        start_ns=st.integers(0, 5) | st.integers(0, 10 * SECOND_NS),
        bits=st.integers(0, 200_000),
        rate=st.none() | st.sampled_from([1_000, 26_000, 10**6]) | st.integers(1_000, 10**6),
    ),
    max_size=9,
)
CAPACITY = st.integers(1_000, 10**6)


def test_a_transfer_takes_its_bits_over_the_rate() -> None:
    assert end_of(5, 80_000, 1_000_000) == 5 + 80_000_000
    assert end_of(5, 1, 3) == 5 + 333_333_334  # not before its last bit has left
    assert end_of(5, 80_000, None) == 5


def test_a_link_carries_one_transfer_after_the_other() -> None:
    line = Line(1_000)
    assert [line.carry(0, 1_000), line.carry(10, 500), line.carry(3 * SECOND_NS, 1_000)] == [
        SECOND_NS, 3 * SECOND_NS // 2, 4 * SECOND_NS,
    ]  # fmt: skip


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 99))
def test_jitter_stays_within_its_bounds_and_is_the_same_at_its_address(latency: int, jitter: int, number: int) -> None:
    drawn = drawn_latency(latency, jitter, [7, 0, 3, number, 1])
    assert latency - jitter <= drawn <= latency + jitter
    assert drawn == drawn_latency(latency, jitter, [7, 0, 3, number, 1])


def test_jitter_differs_by_link_round_and_direction() -> None:
    drawn = {drawn_latency(10**9, 10**8, [7, *address]) for address in product((0, 1), (0, 1), (0, 1), (0, 1))}
    assert len(drawn) == 16


# --- shared links -------------------------------------------------------------------------------------------


def test_two_alike_take_half_each() -> None:
    both = [Flow(start_ns=0, bits=1_000, rate=None)] * 2
    assert fair_ends(both, 1_000) == [2 * SECOND_NS] * 2


def test_what_a_slow_link_leaves_goes_to_the_others() -> None:
    flows = [Flow(start_ns=0, bits=200, rate=100), Flow(start_ns=0, bits=1_800, rate=None)]
    assert fair_ends(flows, 1_000) == [2 * SECOND_NS] * 2


def test_who_comes_later_slows_the_one_under_way() -> None:
    flows = [Flow(start_ns=0, bits=1_500, rate=None), Flow(start_ns=SECOND_NS, bits=500, rate=None)]
    assert fair_ends(flows, 1_000) == [2 * SECOND_NS] * 2


def test_where_nothing_is_shared_each_is_alone() -> None:
    assert fair_ends([Flow(start_ns=1, bits=80, rate=10), Flow(start_ns=2, bits=1, rate=None)], None) == [
        8 * SECOND_NS + 1, 2,
    ]  # fmt: skip


@given(FLOWS, CAPACITY)
def test_no_window_carries_more_than_the_link(flows: list[Flow], capacity: int) -> None:
    ends = fair_ends(flows, capacity)
    for begin, end in product({flow.start_ns for flow in flows}, set(ends)):
        within = [flow for flow, ended in zip(flows, ends, strict=True) if flow.start_ns >= begin and ended <= end]
        assert sum(flow.bits for flow in within) * SECOND_NS <= capacity * max(0, end - begin) or not within
    for flow, ended in zip(flows, ends, strict=True):
        assert ended >= end_of(flow.start_ns, flow.bits, flow.rate)


@given(FLOWS, CAPACITY, st.randoms(use_true_random=False))
def test_the_order_in_which_transfers_are_given_changes_nothing(flows: list[Flow], capacity: int, rng: Random) -> None:
    places = list(range(len(flows)))
    rng.shuffle(places)
    ends = fair_ends(flows, capacity)
    assert fair_ends([flows[place] for place in places], capacity) == [ends[place] for place in places]


@given(FLOWS, CAPACITY)
def test_while_a_transfer_waits_the_link_is_full(flows: list[Flow], capacity: int) -> None:
    unlimited = [Flow(start_ns=flow.start_ns, bits=flow.bits, rate=None) for flow in flows]
    ends = fair_ends(unlimited, capacity)
    busy_until = Fraction(0)
    for flow in sorted(unlimited, key=lambda flow: flow.start_ns):
        busy_until = max(busy_until, flow.start_ns) + Fraction(flow.bits * SECOND_NS, capacity)
    if flows:
        assert max(ends) == math.ceil(busy_until)


@given(FLOWS, CAPACITY)
def test_the_ends_are_those_of_an_exact_account(flows: list[Flow], capacity: int) -> None:
    assert fair_ends(flows, capacity) == [math.ceil(exact) for exact in fluid_ends(flows, capacity)]


@pytest.mark.parametrize("count", [1000])
def test_a_thousand_transfers_of_five_kinds_are_one_calculation(count: int) -> None:
    kinds = [1_000, 26_000, 300_000, 6_000_000, 42_000_000]
    flows = [Flow(start_ns=n * 1_000_003, bits=80_000 + n, rate=kinds[n % 5]) for n in range(count)]
    ends = fair_ends(flows, 50_000_000)
    assert all(end_of(flow.start_ns, flow.bits, flow.rate) <= ended for flow, ended in zip(flows, ends, strict=True))


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python a piece of work goes through, which says what it costs on any machine."""
    lines = 0

    def count(frame: FrameType, event: str, argument: object) -> Callable[..., object]:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def test_each_flow_with_a_rate_of_its_own_adds_the_same_work() -> None:
    few, many = ([Flow(start_ns=0, bits=80_000, rate=20_000 + 37 * n) for n in range(count)] for count in (100, 400))
    # half of what their own links could carry together, so that each has another rate in the end than at the start
    work = [lines_run(partial(fair_ends, flows, sum(flow.rate for flow in flows) // 2)) for flows in (few, many)]
    assert 3.5 < work[1] / work[0] < 4.5  # four times as many; each with all others it would be sixteen times


# --- as it happens -------------------------------------------------------------------------------------------


def test_the_example_of_a_shared_link_is_true() -> None:
    found = doctest.testmod(shared_link)
    assert found.attempted >= 8
    assert not found.failed


def test_a_bit_is_carried_although_thirds_of_it_were_rounded_down() -> None:
    link = FairLink(1)
    for number in range(3):
        link.begin(number, (2,), None)
    for seconds in (1, 2, 3):  # a third of a bit each
        link.advance(seconds * SECOND_NS)
    assert [link.carried(number) for number in range(3)] == [1, 1, 1]


def test_marks_are_passed_as_a_flow_goes_on_and_another_slows_it_down() -> None:
    link = FairLink(1_000)
    link.begin(0, (500, 1_000, 2_000), None)
    assert link.advance(SECOND_NS) == [(0, SECOND_NS // 2), (0, SECOND_NS)]
    link.begin(1, (250, 500), None)  # half the link each from here on
    assert link.next_ns() == 3 * SECOND_NS // 2
    assert link.advance(9 * SECOND_NS) == [(1, 3 * SECOND_NS // 2), (1, 2 * SECOND_NS), (0, 5 * SECOND_NS // 2)]
    assert link.next_ns() is None


def test_who_gives_up_leaves_the_link_to_the_others() -> None:
    link = FairLink(1_000)
    link.begin(0, (1_000,), None)
    link.begin(1, (1_000,), None)
    assert link.advance(SECOND_NS) == []
    link.drop(1)
    link.drop(7)  # which never was
    assert link.advance(2 * SECOND_NS) == [(0, 3 * SECOND_NS // 2)]


@given(FLOWS.filter(len), CAPACITY, st.integers(1, 20 * SECOND_NS))
def test_a_dropped_flow_has_slowed_others_as_one_whose_own_link_is_cut_then(
    flows: list[Flow], capacity: int, at_ns: int
) -> None:
    link, ends = FairLink(capacity), dict[int, int]()
    for start_ns, number in sorted([(flow.start_ns, number) for number, flow in enumerate(flows)] + [(at_ns, -1)]):
        ends |= link.advance(start_ns)
        if number < 0:
            link.drop(0)
        elif flows[number].bits and (number or start_ns < at_ns):
            link.begin(number, (flows[number].bits,), flows[number].rate)
    ends |= link.advance(10**6 * SECOND_NS)
    cut = Flow(start_ns=flows[0].start_ns, bits=flows[0].bits, rate=course_from([(at_ns, flows[0].rate)], 0))
    exact = fluid([cut, *flows[1:]], capacity, 10**6 * SECOND_NS)
    assert ends == {n: math.ceil(end) for n, (end, _) in enumerate(exact) if end is not None and flows[n].bits}


@given(FLOWS, CAPACITY, st.lists(st.integers(0, 200_000), max_size=5))
def test_looking_on_meanwhile_and_marks_change_no_end(flows: list[Flow], capacity: int, cuts: list[int]) -> None:
    link, ends = FairLink(capacity), [flow.start_ns for flow in flows]
    for number, flow in sorted(enumerate(flows), key=lambda each: each[1].start_ns):
        for passed, at_ns in link.advance(flow.start_ns):
            ends[passed] = at_ns
        if flow.bits:
            marks = sorted({cut for cut in cuts if 0 < cut < flow.bits} | {flow.bits})
            link.begin(number, marks, flow.rate)
    while (at_ns := link.next_ns()) is not None:
        for passed, passed_ns in link.advance(at_ns):
            ends[passed] = passed_ns
    assert ends == fair_ends(flows, capacity)
