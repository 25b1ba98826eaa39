"""Rates of links that change over time. All results are exact, in whole nanoseconds and whole bits per second.

A rate is a number of bits per second, a `RateSchedule`, or None if it has no limit. A link with rate 0 carries nothing.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

SECOND_NS = 10**9


@dataclass(frozen=True)
class Trace:
    """Hold constant rates. Each rate applies from its start until the next start; the first start is 0. After
    `period_ns` the trace begins again. Without a period, the last rate applies without end.
    """

    starts: tuple[int, ...]
    rates: tuple[int, ...]
    period_ns: int | None = None

    def at(self, now_ns: int) -> tuple[int, int | None]:
        """Return the rate at a given time, and the time of its next change. If there is no further change, the time is
        None.
        """
        begun = 0 if self.period_ns is None else now_ns // self.period_ns * self.period_ns
        number = bisect_right(self.starts, now_ns - begun) - 1
        if number + 1 < len(self.starts):
            return self.rates[number], begun + self.starts[number + 1]
        return self.rates[number], None if self.period_ns is None else begun + self.period_ns

    @cached_property
    def period_worth(self) -> int:
        """The number of bits that the link carries in one period, multiplied by 10⁹."""
        ends = (*self.starts[1:], self.period_ns or self.starts[-1])
        return sum(rate * (end - start) for start, end, rate in zip(self.starts, ends, self.rates, strict=True))

    def limited(self, most: int) -> "Trace":
        """Return the trace with all rates limited to `most`."""
        return Trace(self.starts, tuple(min(rate, most) for rate in self.rates), self.period_ns)


@dataclass(frozen=True)
class RateSchedule:
    """Hold constant rates and traces (rates that change over time). Each rate or trace applies from its start until the
    next start; the first start is 0. The last one applies without end.
    """

    starts: tuple[int, ...]
    sources: tuple[int | Trace | None, ...]

    def at(self, now_ns: int) -> tuple[int | None, int | None]:
        """Return the rate at a given time, and the time of its next change. If there is no further change, the time is
        None.
        """
        number = bisect_right(self.starts, now_ns) - 1
        source, until = self.sources[number], self._end_of(number)
        if not isinstance(source, Trace):
            return source, until
        rate, changes = source.at(now_ns)
        return rate, min((each for each in (changes, until) if each is not None), default=None)

    def whole_periods(self, now_ns: int, worth: int) -> tuple[int, int]:
        """Return how much of a transfer `_end_on` can skip at once: whole periods of the trace that applies at
        `now_ns`. `worth` is the most that may be skipped: a number of bits, multiplied by 10⁹.

        The first result is the duration of the skipped periods in nanoseconds. The second result is the number of bits
        that the link carries in these periods, multiplied by 10⁹. Without a periodic trace, both are 0.
        """
        number = bisect_right(self.starts, now_ns) - 1
        source, until = self.sources[number], self._end_of(number)
        if not isinstance(source, Trace) or source.period_ns is None:
            return 0, 0
        count = worth // source.period_worth
        if until is not None:
            count = min(count, (until - now_ns) // source.period_ns)
        return count * source.period_ns, count * source.period_worth

    def _end_of(self, number: int) -> int | None:
        return self.starts[number + 1] if number + 1 < len(self.starts) else None


AnyRate = int | None | RateSchedule


def rate_at(rate: AnyRate, now_ns: int) -> tuple[int | None, int | None]:
    """Return the value of a rate at a given time, and the time of its next change. If there is no further change, the
    time is None.
    """
    return rate.at(now_ns) if isinstance(rate, RateSchedule) else (rate, None)


def rate_schedule(parts: Sequence[tuple[int, int | Trace | None]], cuts: Sequence[tuple[int, int]] = ()) -> AnyRate:
    """Combine rates and traces into one rate. Each part applies from its start until the next start; the first start is
    0. During each cut the rate is 0.
    """
    if len(parts) == 1 and not cuts and not isinstance(parts[0][1], Trace):
        return parts[0][1]
    starts = sorted({start for start, _ in parts} | {at_ns for cut in cuts for at_ns in cut})
    sources: list[int | Trace | None] = []
    for start in starts:
        is_cut = any(begin <= start < end for begin, end in cuts)
        sources.append(0 if is_cut else [source for begin, source in parts if begin <= start][-1])
    return RateSchedule(tuple(starts), tuple(sources))


def end_of(start_ns: int, bits: int, rate: AnyRate) -> int:
    """Return the time at which the last bit of a transfer leaves a link that carries nothing else. The transfer starts
    at `start_ns`. If the rate is None (no limit), the transfer takes no time.
    """
    if isinstance(rate, RateSchedule):
        return _end_on(rate, start_ns, bits * SECOND_NS)
    return start_ns if rate is None else start_ns - (-bits * SECOND_NS // rate)


def bits_between(start_ns: int, now_ns: int, rate: AnyRate) -> int | None:
    """Return how many bits of a transfer a link sends between two times if it carries nothing else. If the rate has no
    limit at some time in between, return None.
    """
    worth = 0
    while start_ns < now_ns:
        bits, until = rate_at(rate, start_ns)
        if bits is None:
            return None
        ends_ns = now_ns if until is None else min(until, now_ns)
        worth, start_ns = worth + bits * (ends_ns - start_ns), ends_ns
    return worth // SECOND_NS


def fastest(rate: AnyRate) -> int | None:
    """Return the largest value of a rate over time. If the rate has no limit at some time, return None."""
    if not isinstance(rate, RateSchedule):
        return rate
    rates = [max(source.rates) if isinstance(source, Trace) else source for source in rate.sources]
    return None if None in rates else max(each for each in rates if each is not None)


def longest_ns(bits: int, rate: AnyRate) -> int:
    """Return an upper limit of the time that this many bits take, whenever the transfer starts."""
    if not isinstance(rate, RateSchedule):
        return end_of(0, bits, rate)
    stops = zip(rate.starts, (*rate.starts[1:], rate.starts[-1]), strict=True)
    cut_ns = sum(end - start for (start, end), source in zip(stops, rate.sources, strict=True) if source == 0)
    return cut_ns + sum(_longest_on(source, bits) for source in rate.sources if source)


def _longest_on(source: int | Trace, bits: int) -> int:
    """Return an upper limit of the time, in nanoseconds, that this many bits take. The link has this constant rate or
    trace, without end, and the transfer may start at any time.
    """
    if not isinstance(source, Trace):
        return end_of(0, bits, source)
    if source.period_ns is None:
        return source.starts[-1] + end_of(0, bits, source.rates[-1])
    return (bits * SECOND_NS // source.period_worth + 2) * source.period_ns


def _end_on(schedule: RateSchedule, now_ns: int, left: int) -> int:
    """Return the time at which the last bit leaves a link with a changing rate. The transfer starts at `now_ns`, and
    `left` is its number of bits multiplied by 10⁹.
    """
    while left:
        skipped_ns, carried = schedule.whole_periods(now_ns, left - 1)
        now_ns, left = now_ns + skipped_ns, left - carried
        rate, until = schedule.at(now_ns)
        if rate is None:
            return now_ns
        if until is None or rate * (until - now_ns) >= left:
            return now_ns - (-left // rate)
        now_ns, left = until, left - rate * (until - now_ns)
    return now_ns
