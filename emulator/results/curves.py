"""Compute curves of the main metric: over global rounds, bytes and virtual time, with mean and deviation over seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from emulator.results.device_costs import bytes_by_round, metric_by_round
from emulator.results.over_seeds import Spread
from emulator.results.read_record import RunRecord

Points = Sequence[tuple[float, float]]  # x and the main metric; x rises


@dataclass(frozen=True, kw_only=True)
class Abscissa:
    """Define the x axis of curves: the name of the curves' files, and a function that returns the points of a run."""

    name: str
    said: str
    of: Callable[[RunRecord], Points]


@dataclass(frozen=True, kw_only=True)
class BandPoint:
    """Hold the metric's spread over seeds at one x."""

    x: float
    spread: Spread


def over_rounds(run: RunRecord) -> Points:
    """Return the main metric over global rounds."""
    return [(float(number), value) for number, value in metric_by_round(run)]


def over_bytes(run: RunRecord) -> Points:
    """Return the main metric over the bytes that devices had sent and received. If the record has no bytes, there are
    no points.
    """
    spent = bytes_by_round(run)
    return [(spent[number], value) for number, value in metric_by_round(run)] if run.summary.bytes else []


def metric_over_time(record: RunRecord) -> list[tuple[float, float]]:
    """Return points of a curve: virtual times in seconds, each with the main metric at that time. The metric is the
    mean over all LPSs, each with its newest measured model. The curve begins when every LPS has such a model.
    """
    ready: Mapping[tuple[str | None, int | None], float] = {
        (row.lps_id, row.lps_round): row.ready_s for row in record.timeline if row.tier == "lps"
    }
    measured = sorted(
        (ready[row.lps_id, row.lps_round], row.lps_id, value)
        for row in record.global_models
        if (value := row.metrics[record.headline.name]) is not None and (row.lps_id, row.lps_round) in ready
    )
    latest: dict[str, float] = {}
    points: dict[float, float] = {}
    for at_s, lps_id, value in measured:
        latest[lps_id] = value
        if len(latest) == len(record.summary.by_lps):
            points[at_s] = sum(latest.values()) / len(latest)
    return list(points.items())


ABSCISSAE: Sequence[Abscissa] = (
    Abscissa(name="rounds", said="global round", of=over_rounds),
    Abscissa(name="bytes", said="bytes of all devices", of=over_bytes),
    Abscissa(name="time", said="virtual time", of=metric_over_time),
)


def band(curves: Mapping[int, Points]) -> list[BandPoint]:
    """Return the spread over the curves of several seeds, by x. Between two points, a curve keeps the value of the
    earlier point.

    The band begins when every curve has a value. After its last point, a curve keeps its last value. Curves without
    points are left out.
    """
    known = [curve for curve in curves.values() if curve]
    begin = max((curve[0][0] for curve in known), default=0.0)
    xs = sorted({x for curve in known for x, _ in curve if x >= begin})
    found, places = list[BandPoint](), [0] * len(known)
    for x in xs:
        for index, curve in enumerate(known):
            while places[index] + 1 < len(curve) and curve[places[index] + 1][0] <= x:
                places[index] += 1
        values = [curve[place][1] for curve, place in zip(known, places, strict=True)]
        found.append(BandPoint(x=x, spread=Spread.over(values)))
    return found
