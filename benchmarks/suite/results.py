"""The results of measurements: rows of a table, points of a figure, and the file that keeps them."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from fedstrata.store import write_aside

Times = list[float]
Axis = Literal["devices", "model", "lps"]


@dataclass(frozen=True, kw_only=True)
class Aim:
    """Define a limit for the median of a row's ratio; for a row without a peer, of the row's measurements."""

    sense: Literal["at least", "at most"]
    limit: float

    def holds(self, value: float) -> bool:
        """Return whether the value keeps the limit."""
        return value >= self.limit if self.sense == "at least" else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.sense == 'at least' else '≤'} {self.limit:g}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Hold one measurement of Fedstrata and, if there is one, of a peer. Both have one value per repeat."""

    part: str
    measured: str  # the measured work
    unit: str
    ours: Times
    other: str = ""  # the peer or loop to compare with
    theirs: Times = field(default_factory=list)
    aim: Aim | None = None

    @property
    def ratios(self) -> Times:
        """Return one ratio per repeat; empty without a peer. If the aim is `at least`, it is the peer's value divided
        by Fedstrata's value: how many times faster Fedstrata is. Otherwise it is Fedstrata's value divided by the
        peer's.
        """
        pairs = zip(self.ours, self.theirs, strict=True) if self.theirs else ()
        is_faster = self.aim is not None and self.aim.sense == "at least"
        return [theirs / ours if is_faster else ours / theirs for ours, theirs in pairs]

    @property
    def is_met(self) -> bool | None:
        """Return whether the aim is met; None without one."""
        return None if self.aim is None else self.aim.holds(statistics.median(self.ratios or self.ours))


@dataclass(frozen=True, kw_only=True)
class Point:
    """Hold the cost of a global round at one size: CPU seconds by tier, and the largest peak memory of a process."""

    axis: Axis
    devices: int
    model_mb: float
    lps: int
    wall_s: float
    cpu_s: dict[str, float]
    peak_mb: dict[str, float]


@dataclass(kw_only=True)
class Results:
    """Hold the results of one run of the suite."""

    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    loads: dict[str, tuple[float, float]] = field(default_factory=dict)  # one-minute load by part, before and after
    seconds: dict[str, float] = field(default_factory=dict)  # the time that each part took
    notes: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the results as JSON. The file is either complete or absent."""
        rows = [asdict(row) | {"ratios": row.ratios, "is_met": row.is_met} for row in self.rows]
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_aside(path, durable=False) as file:
            file.write(json.dumps(asdict(self) | {"rows": rows}, indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Return the results in a file that `write` wrote."""
        return TypeAdapter(cls).validate_json(path.read_bytes())


def spread(values: Sequence[float]) -> str:
    """Return median and range as text: `1.2 (1.1 to 1.4)`."""
    if not values:
        return "–"
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))} to {number(max(values))})"


def number(value: float) -> str:
    """Return a number with three digits and without an exponent.

    >>> [number(value) for value in (0.01234, 1.234, 12.34, 1234.5)]
    ['0.0123', '1.23', '12.3', '1234']
    """
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")
