"""Rates that change while transfers are under way: by hand, and against a plain step-by-step account in fractions."""

import math
from fractions import Fraction
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from fedstrata.experiment.rates import SECOND_NS, AnyRate, RateSchedule, Trace, end_of, rate_at, rate_schedule
from fedstrata.links.shared_link import Flow, fair_ends
from tests.support.link_accounts import course_from, fluid_ends

S = SECOND_NS
STEPS = st.lists(st.tuples(st.integers(1, 4 * S), st.integers(0, 3_000)), min_size=1, max_size=4)


def carried(rate: AnyRate, begin_ns: int, end_ns: int) -> Fraction:
    """Bits that leave between two times, change by change."""
    total, now = Fraction(0), begin_ns
    while now < end_ns:
        bits_a_second, until = rate_at(rate, now)
        stop = end_ns if until is None else min(until, end_ns)
        total += Fraction((bits_a_second or 0) * (stop - now), S)
        now = stop
    return total


def test_a_transfer_goes_on_at_the_rate_that_the_link_has_then() -> None:
    rate = rate_schedule([(0, 1_000), (2 * S, 500)])
    assert end_of(S, 1_000, rate) == 2 * S
    assert end_of(S, 2_000, rate) == 4 * S  # one second at 1,000 bit/s, two at 500
    assert end_of(0, 0, rate) == 0
    assert end_of(S, 2_000, rate_schedule([(0, 1_000), (2 * S, None)])) == 2 * S


def test_a_cut_link_carries_nothing_and_goes_on_afterwards() -> None:
    rate = rate_schedule([(0, 1_000)], cuts=[(S, 3 * S), (2 * S, 4 * S)])
    assert end_of(0, 1_500, rate) == 4 * S + S // 2
    assert end_of(2 * S, 1_000, rate) == 5 * S
    assert end_of(3 * S, 8, rate_schedule([(0, None)], cuts=[(S, 4 * S)])) == 4 * S


def test_a_trace_begins_again_after_its_period_or_its_last_rate_stays() -> None:
    again = rate_schedule([(0, Trace((0, S), (1_000, 0), 2 * S))])
    assert [rate_at(again, at) for at in (0, S, 2 * S)] == [(1_000, S), (0, 2 * S), (1_000, 3 * S)]
    assert end_of(0, 3_000, again) == 5 * S  # at work in the first, third and fifth second
    stays = rate_schedule([(0, Trace((0, S), (1_000, 10), None))])
    assert end_of(0, 1_010, stays) == 2 * S


def test_a_year_of_a_trace_is_not_gone_through_step_by_step() -> None:
    rate = rate_schedule([(0, Trace((0, 1), (1, 0), S))])  # one bit and a nanosecond's worth a second
    assert end_of(0, 3, rate) == end_of(0, 2, rate) + S * S  # a bit takes a thousand million periods


@given(STEPS, st.none() | st.integers(1, 3_000), st.integers(0, 9 * S), st.integers(0, 20_000))
def test_the_end_is_the_first_nanosecond_at_which_all_bits_have_left(
    steps: list[tuple[int, int]], last: int | None, start_ns: int, bits: int
) -> None:
    rate = course_from(steps, last)
    end = end_of(start_ns, bits, rate)
    if last is None and rate_at(rate, end)[0] is None:
        assert end == start_ns or carried(rate, start_ns, end) <= bits
        return
    assert carried(rate, start_ns, end) >= bits
    assert end == start_ns or carried(rate, start_ns, end - 1) < bits


@given(STEPS.filter(lambda steps: any(rate for _, rate in steps)), st.integers(0, 9 * S), st.integers(1, 9_000_000))
def test_whole_periods_of_a_trace_are_passed_over_to_the_same_end(
    steps: list[tuple[int, int]], start_ns: int, bits: int
) -> None:
    starts = [0]
    for length, _ in steps:
        starts.append(starts[-1] + length)
    trace = Trace(tuple(starts[:-1]), tuple(rate for _, rate in steps), starts[-1])
    end = end_of(start_ns, bits, rate_schedule([(0, trace)]))
    periods, rest = divmod(end - start_ns, starts[-1])
    whole = Fraction(trace.period_worth, S) * periods
    begin = start_ns + periods * starts[-1]
    assert whole + carried(rate_schedule([(0, trace)]), begin, begin + rest) >= bits
    if rest:
        assert whole + carried(rate_schedule([(0, trace)]), begin, begin + rest - 1) < bits


# --- shared links -------------------------------------------------------------------------------------------


FLOWS = st.lists(
    st.builds(
        Flow,
        start_ns=st.integers(0, 5) | st.integers(0, 6 * S),
        bits=st.integers(0, 9_000),
        rate=st.none() | st.integers(500, 3_000) | st.builds(course_from, STEPS, st.integers(1, 3_000)),
    ),
    max_size=5,
)


# The shares change at a fraction of a nanosecond, long before the third has 2 bit/s to make up for what was rounded.
@example(
    flows=[
        Flow(start_ns=0, bits=1, rate=None),
        Flow(start_ns=0, bits=1, rate=None),
        Flow(start_ns=0, bits=2, rate=course_from([(1_439_567, 695)], 1)),
    ],
    capacity=course_from([(1_439_538, 2_084)], 100),
)
@given(FLOWS, st.builds(course_from, STEPS, st.integers(100, 6_000)))
def test_shared_links_are_max_min_fair_while_rates_change(flows: list[Flow], capacity: AnyRate) -> None:
    for end, expected in zip(fair_ends(flows, capacity), fluid_ends(flows, capacity), strict=True):
        assert end == math.ceil(expected)


@given(FLOWS)
def test_a_link_that_changes_to_what_it_is_changes_nothing(flows: list[Flow]) -> None:
    same = rate_schedule([(0, 2_000), (S, 2_000), (3 * S, 2_000)])
    assert isinstance(same, RateSchedule)
    for one, other in zip(fair_ends(flows, same), fair_ends(flows, 2_000), strict=True):
        assert one == other


def test_of_two_on_a_shared_link_one_goes_on_alone_while_the_other_is_cut() -> None:
    cut = rate_schedule([(0, None)], cuts=[(S, 3 * S)])
    ends = fair_ends([Flow(start_ns=0, bits=2_000, rate=cut), Flow(start_ns=0, bits=2_000, rate=None)], 1_000)
    # 500 each in the first second; then the other's 1,500 at 1,000 bit/s until 2.5 s, and from 3 s on what is left
    assert ends == [3 * S + 3 * S // 2, 2 * S + S // 2]
    assert all(begin <= end for begin, end in pairwise(sorted(ends)))
