"""An account of shared links in exact fractions, which knows nothing of the product's."""

from fractions import Fraction

from fedstrata.clock.shared_link import Flow
from fedstrata.experiment.rates import SECOND_NS, AnyRate, rate_at, rate_schedule


def course_from(steps: list[tuple[int, int]], last: int | None) -> AnyRate:
    """Each rate for a time, and then the last one for good."""
    starts = [0]
    for length, _ in steps:
        starts.append(starts[-1] + length)
    return rate_schedule(list(zip(starts, [*(rate for _, rate in steps), last], strict=True)))


def fluid_ends(flows: list[Flow], capacity: AnyRate) -> list[Fraction]:
    """Max-min fair ends as fractions of a nanosecond, from change to change, by an account of its own."""
    left = {number: Fraction(flow.bits) for number, flow in enumerate(flows) if flow.bits}
    ends = [Fraction(flow.start_ns) for flow in flows]
    now = Fraction(min((flow.start_ns for flow in flows), default=0))
    while left:
        at = int(now)
        active = [number for number in left if flows[number].start_ns <= now]
        most = {number: rate_at(flows[number].rate, at) for number in active}
        whole, until = rate_at(capacity, at)
        share = _max_min({n: rate for n, (rate, _) in most.items()}, whole or 0)
        times = [Fraction(t) for t in (until, *(t for _, t in most.values())) if t is not None]
        times += [Fraction(flows[n].start_ns) for n in left if flows[n].start_ns > now]
        times += [now + left[n] * SECOND_NS / share[n] for n in active if share[n]]
        then = min(time for time in times if time > now)
        for number in active:
            left[number] -= share[number] * (then - now) / SECOND_NS
            if left[number] <= 0:
                ends[number] = then
                del left[number]
        now = then
    return ends


def _max_min(most: dict[int, int | None], capacity: int) -> dict[int, Fraction]:
    share, open_, left = dict[int, Fraction](), dict(most), Fraction(capacity)
    while open_:
        even = left / len(open_)
        bound = {n: rate for n, rate in open_.items() if rate is not None and rate <= even}
        if not bound:
            return share | dict.fromkeys(open_, even)
        for number, rate in bound.items():
            share[number] = Fraction(rate)
            left -= rate
            del open_[number]
    return share
