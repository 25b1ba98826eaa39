"""Fit the values of links and computing to measured times. Each value comes with its uncertainty."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

LEAST_S = 1e-3  # shorter times are not told from the noise of a machine
LEAST_FACTOR, MOST_FACTOR = 0.01, 1e6  # of a device's computing time


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Hold the median of several measured values, with their quartiles as its uncertainty."""

    value: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Return the median and the quartiles of at least one value."""
        known = list(values)
        low, value, high = (float(each) for each in np.percentile(known, (25, 50, 75)))
        return cls(value=value, low=low, high=high, count=len(known))

    def said(self, written: Callable[[float], str], of: str) -> str:
        """Return the value and its quartiles as text. `written` turns a number into text, and `of` names what was
        measured, such as "device".
        """
        if self.count == 1:
            return f"{written(self.value)}, from one {of}, so without an uncertainty"
        return f"{written(self.value)}, quartiles {written(self.low)} to {written(self.high)} of {self.count} {of}s"


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """Hold the transfers of one size over a child's link in one direction: their mean size in bytes, and their usual
    time in seconds.
    """

    child: str
    mean_bytes: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LinkFit:
    """Hold the fitted values of a link. If transfers in a direction were too fast to measure, the direction has no
    rate.
    """

    rates: Mapping[str, Fitted]  # bits per second, by direction
    latency: Fitted | None  # in seconds; None if it is assumed
    latency_s: float


def fit_link(measured: Mapping[str, Sequence[Transfers]], assumed_s: float) -> LinkFit:
    """Return the rates and the latency that give the measured times. `measured` has the transfers by direction.

    If a child's link carried transfers of different sizes, their times give the rate and the latency. The fit takes the
    median over the children, so a few slow children change it little. If each child's transfers have equal sizes,
    latency and rate cannot be separated, so the latency is `assumed_s`.
    """
    latencies = [each for transfers in measured.values() for each in _latencies(transfers)]
    latency = Fitted.of(latencies) if latencies else None
    latency_s = max(0.0, latency.value) if latency is not None else assumed_s
    rates = {}
    for way, transfers in measured.items():
        largest = {each.child: each for each in sorted(transfers, key=lambda each: each.mean_bytes)}
        took = [(8 * each.mean_bytes, each.seconds - latency_s) for each in largest.values() if each.mean_bytes]
        if took and np.median([seconds for _, seconds in took]) >= LEAST_S:
            rates[way] = Fitted.of(bits / seconds for bits, seconds in took if seconds >= LEAST_S)
    return LinkFit(rates=rates, latency=latency, latency_s=latency_s)


def _latencies(transfers: Sequence[Transfers]) -> list[float]:
    """Return one latency per child, in seconds, calculated from its smallest and its largest transfer. A child is left
    out if the largest transfer has less than twice as many bytes, or took hardly longer.
    """
    by_child: dict[str, list[Transfers]] = {}
    for each in transfers:
        by_child.setdefault(each.child, []).append(each)
    found = []
    for own in by_child.values():
        small, large = (pick(own, key=lambda each: each.mean_bytes) for pick in (min, max))
        more, longer_s = large.mean_bytes - small.mean_bytes, large.seconds - small.seconds
        if large.mean_bytes >= 2 * small.mean_bytes and longer_s >= LEAST_S:
            found.append(small.seconds - small.mean_bytes * longer_s / more)
    return found


@dataclass(frozen=True, kw_only=True)
class ComputeFit:
    """Hold the fitted computing of devices."""

    per_example: Fitted  # seconds for an example on a device with the factor 1
    factors: Mapping[int, float]  # by device, as a share of the median device
    spread: float  # standard deviation of the factors' logarithms


def fit_compute(seconds: Mapping[int, Sequence[float]]) -> ComputeFit:
    """Return the seconds per example, and each device's factor relative to the median device. `seconds` has the
    computing times of each device's rounds, divided by the number of examples on which the device trained in the round.
    """
    own = {index: float(np.median(each)) for index, each in seconds.items()}
    middle = float(np.median(list(own.values()) or [0.0]))
    if not middle:
        return ComputeFit(per_example=Fitted.of([0.0]), factors={}, spread=0.0)
    shares = {index: min(max(each / middle, LEAST_FACTOR), MOST_FACTOR) for index, each in own.items()}
    rounds = [took / share for index, share in shares.items() for took in seconds[index]]
    spread = float(np.std(np.log(list(shares.values())), ddof=1)) if len(shares) > 1 else 0.0
    factors = {index: round(share, 2) for index, share in shares.items()}
    return ComputeFit(per_example=Fitted.of(rounds), factors=factors, spread=spread)
