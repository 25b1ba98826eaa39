"""When rounds close, and how much updates of earlier models weigh."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from fedstrata.experiment.sections import BufferedSettings, PolynomialWeights, TimedSettings
from fedstrata.rhythms import Contributed, make_rhythm
from fedstrata.rhythms.weights import CatchUp, Even, divisor, make_factors

ARRIVALS = st.lists(st.integers(min_value=0, max_value=10**12), min_size=1, max_size=30).map(sorted)
TIMES = st.integers(min_value=0, max_value=10**12)


def timed(period: str = "auto") -> TimedSettings:
    return TimedSettings.model_validate({"kind": "timed", "period": period})


def test_a_timed_round_closes_after_its_period_with_the_first_update_or_with_the_last() -> None:
    rhythm = make_rhythm(timed("10ns"), 3)
    assert rhythm.closes_ns(100, [104, 109, 250], 10) == 110
    assert rhythm.closes_ns(100, [125, 130, 250], 10) == 125  # nothing has arrived by 110
    assert rhythm.closes_ns(100, [104, 107], 10) == 107  # nobody is at work after 107
    assert rhythm.closes_ns(100, [40, 60, 300], 10) == 110  # arrived while the LPS waited for the GPS


def test_an_automatic_period_is_a_sixth_of_the_longest_work_of_the_first_round() -> None:
    assert make_rhythm(timed(), 3).period_ns([12, 600, 66]) == 100
    assert make_rhythm(timed("2us"), 3).period_ns([12, 600, 66]) == 2000


def test_a_buffered_round_closes_with_a_number_of_updates() -> None:
    rhythm = make_rhythm(BufferedSettings(kind="buffered", buffer=2), 5)
    assert rhythm.closes_ns(100, [110, 120, 130], 0) == 120
    assert rhythm.closes_ns(100, [110], 0) == 110  # only one child is at work
    assert rhythm.closes_ns(100, [40, 60, 130], 0) == 100  # both arrived before the round
    share = BufferedSettings(kind="buffered", buffer=0.3)
    closed = [make_rhythm(share, devices).closes_ns(0, range(1, devices + 1), 0) for devices in (1, 10, 11)]
    assert closed == [1, 3, 4]  # update n arrives at n


@given(opened=TIMES, arrivals=ARRIVALS)
def test_a_buffer_of_all_and_a_long_period_are_the_synchronous_round(opened: int, arrivals: list[int]) -> None:
    expected = max(opened, arrivals[-1])  # the last update has arrived
    everybody = make_rhythm(BufferedSettings(kind="buffered", buffer=1.0), len(arrivals))
    assert everybody.closes_ns(opened, arrivals, 0) == expected
    assert make_rhythm(timed("1h"), len(arrivals)).closes_ns(opened, arrivals, 3600 * 10**9) == expected


@given(opened=TIMES, arrivals=ARRIVALS, buffer=st.integers(1, 40), period=st.integers(1, 10**12))
def test_no_round_closes_before_it_opens_or_without_an_update(
    opened: int, arrivals: list[int], buffer: int, period: int
) -> None:
    for rhythm in (make_rhythm(BufferedSettings(kind="buffered", buffer=buffer), 40), make_rhythm(timed(), 40)):
        closes_ns = rhythm.closes_ns(opened, arrivals, period)
        assert closes_ns >= opened
        assert arrivals[0] <= closes_ns <= max(opened, arrivals[-1])


def test_factors_of_updates() -> None:
    fresh, stale = Contributed(staleness=0, gap=1), Contributed(staleness=3, gap=20)
    assert [Even().factor(each) for each in (fresh, stale)] == [1, 1]
    assert [CatchUp(16).factor(each) for each in (fresh, stale)] == [1, 16]
    half = make_factors(PolynomialWeights(kind="polynomial", exponent=0.5))
    assert [half.factor(each) for each in (fresh, stale)] == [1024, 512]  # (1 + 3)^-0.5 is a half


def test_the_divisor_bounds_the_step() -> None:
    # 30 of 90 examples, step 1: the mean of the round counts a third; step 2: two thirds; step 3 and more: whole
    assert [divisor(30, 30, 90, Fraction(step)) for step in (1, 2, 3, 5)] == [90, 45, 30, 30]
    assert divisor(90, 90, 90, Fraction(1)) == 90  # all updates: the mean
    assert divisor(60, 30, 90, Fraction(1)) == 180  # all with factor 2: a third, too
    assert divisor(1024 * 30, 30, 90, Fraction(1)) == 1024 * 90
    assert divisor(0, 0, 90, Fraction(1)) == 0
    assert divisor(10, 10, 25, Fraction("0.3")) == 84  # ⌈250 / 3⌉
