"""An account of shared links in exact fractions, which knows nothing of the product's."""

from collections.abc import Sequence
from fractions import Fraction

from fedstrata.experiment.rates import SECOND_NS, AnyRate, rate_at, rate_schedule
from fedstrata.links.shared_link import Flow


def course_from(steps: list[tuple[int, int]], last: int | None) -> AnyRate:
    """Each rate for a time, and then the last one for good."""
    starts = [0]
    for length, _ in steps:
        starts.append(starts[-1] + length)
    return rate_schedule(list(zip(starts, [*(rate for _, rate in steps), last], strict=True)))


def fluid_ends(flows: Sequence[Flow], capacity: AnyRate) -> list[Fraction]:
    """Max-min fair ends as fractions of a nanosecond."""
    return [end for end, _ in fluid(flows, capacity) if end is not None]


def fluid(
    flows: Sequence[Flow], capacity: AnyRate, until_ns: int | None = None
) -> list[tuple[Fraction | None, Fraction]]:
    """When each flow is over, if it is by a time, and its bits by then; fairly shared, from change to change."""
    sent = [Fraction(0)] * len(flows)
    ends = [None if flow.bits else Fraction(flow.start_ns) for flow in flows]
    now = Fraction(min((flow.start_ns for flow in flows), default=0))
    while None in ends and (until_ns is None or now < until_ns):
        left = [number for number, end in enumerate(ends) if end is None]
        active = [number for number in left if flows[number].start_ns <= now]
        most = {number: rate_at(flows[number].rate, int(now)) for number in active}
        whole, until = rate_at(capacity, int(now))
        share = _max_min({n: rate for n, (rate, _) in most.items()}, whole or 0)
        times = [Fraction(t) for t in (until, until_ns, *(t for _, t in most.values())) if t is not None]
        times += [Fraction(flows[n].start_ns) for n in left if flows[n].start_ns > now]
        times += [now + (flows[n].bits - sent[n]) * SECOND_NS / share[n] for n in active if share[n]]
        then = min(time for time in times if time > now)
        for number in active:
            sent[number] += share[number] * (then - now) / SECOND_NS
            if sent[number] == flows[number].bits:
                ends[number] = then
        now = then
    return list(zip(ends, sent, strict=True))


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
