"""The share of the baseline's time and bytes that the other cells of a sweep need to reach the baseline's accuracy.

    python -m benchmarks.time_to_target DIR

Nothing is trained again. `DIR` is the folder of a sweep with a baseline, on the virtual clock. The target is 95 or
100 % of the mean of the baseline's last four measurements. A run reaches the target at the first measurement at which
the median of this measurement and its two neighbours reaches it. A number in the table is the mean over the seeds,
followed by the largest in brackets. If runs of some seeds miss the target, the table says how many reach it. If the
baseline itself misses the target, its time and bytes at the end of the run are used.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from emulator.results.best_round import measured_rounds
from emulator.results.device_costs import bytes_by_round
from emulator.results.read_record import RunRecord
from emulator.sweeps.file import Place, load_sweep
from emulator.sweeps.sweep_folder import records_of
from fedstrata.tasks import Metric

SHARES = (0.95, 1.0)
LAST = 4  # measurements of the baseline whose mean is the target


@dataclass(frozen=True, kw_only=True)
class Point:
    """Hold the main metric of a global model, when the GPS had the model, and the bytes of devices until then."""

    at_s: float
    spent_bytes: float
    value: float


def points_of(record: RunRecord) -> list[Point]:
    """Return the measured global models of a run on the virtual clock."""
    ready = {row.global_round: row.ready_s for row in record.timeline if row.tier == "gps"}
    spent = bytes_by_round(record)
    return [
        Point(at_s=ready[number], spent_bytes=spent[number], value=value)
        for number, value in measured_rounds(record).items()
    ]


def target_of(points: Sequence[Point]) -> float:
    """Return the mean of the last `LAST` measurements."""
    return fmean(point.value for point in points[-LAST:])


def reached(points: Sequence[Point], target: float, share: float, metric: Metric) -> Point | None:
    """Return the first point at which the median of this point and its two neighbours reaches a share of the target.
    Return None if there is no such point.
    """
    for before, point, after in zip(points, points[1:], points[2:], strict=False):
        if metric.is_reached(median((before.value, point.value, after.value)), target, share):
            return point
    return None


def said(parts: Sequence[float | None]) -> str:
    """Return the mean and the largest of these parts as text. If some parts are None, the text says how many runs reach
    the target.
    """
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return f"{len(found)} of {len(parts)} reach it" if found else "none"
    return f"{fmean(found):.2f} ({max(found):.2f})"


def rows_of(records: dict[tuple[Place, int], RunRecord], baseline: str) -> list[list[str]]:
    """Return a row for each cell and setting. It has the name, and for each of `SHARES` the time and the bytes until
    this share of the target is reached, divided by the baseline's time and bytes.
    """
    points = {key: points_of(record) for key, record in records.items()}
    found: dict[Place, list[list[float | None]]] = {}
    for (place, seed), own in points.items():
        basis = points.get((Place(cell=baseline, setting=place.setting), seed))
        if basis is None:
            continue
        target, metric = target_of(basis), records[place, seed].headline
        parts: list[float | None] = []
        for share in SHARES:
            whole = reached(basis, target, share, metric) or basis[-1]
            point = whole if place.cell == baseline else reached(own, target, share, metric)
            parts += [point.at_s / whole.at_s, point.spent_bytes / whole.spent_bytes] if point else [None, None]
        found.setdefault(place, []).append(parts)
    return [[place.label, *(said(column) for column in zip(*seeds, strict=True))] for place, seeds in found.items()]


def main() -> None:
    """Print the table of a sweep's folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    folder = parser.parse_args().sweep
    sweep = load_sweep(folder / "sweep.yaml")
    if sweep.baseline is None:
        parser.error(f"{folder / 'sweep.yaml'} names no baseline")
    print(f"| cell |{''.join(f' {100 * share:.0f} %: time | bytes |' for share in SHARES)}")
    print("|---|" + "---:|" * (2 * len(SHARES)))
    for row in rows_of(records_of(folder, sweep), sweep.baseline):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
