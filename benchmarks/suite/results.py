"""What was measured: rows of a table, points of a figure, and the file that keeps them."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Times = list[float]


@dataclass(frozen=True, kw_only=True)
class Aim:
    """A limit for the median of a row's ratio, or of what was measured where there is nothing beside it."""

    sense: Literal["at least", "at most"]
    limit: float

    def holds(self, value: float) -> bool:
        """Return whether the value is on the right side."""
        return value >= self.limit if self.sense == "at least" else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.sense == 'at least' else '≤'} {self.limit:g}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement of ours beside another, one entry a repeat, taken in turn."""

    part: str
    measured: str  # what, of which work
    unit: str
    ours: Times
    other: str = ""  # who is beside us
    theirs: Times = field(default_factory=list)
    aim: Aim | None = None

    @property
    def ratios(self) -> Times:
        """Return how many times faster we are if the aim is at least so many; else how many times as dear."""
        pairs = zip(self.ours, self.theirs, strict=True) if self.theirs else ()
        is_faster = self.aim is not None and self.aim.sense == "at least"
        return [theirs / ours if is_faster else ours / theirs for ours, theirs in pairs]

    @property
    def is_met(self) -> bool | None:
        """Return whether the aim is met; None without one."""
        return None if self.aim is None else self.aim.holds(statistics.median(self.ratios or self.ours))


@dataclass(frozen=True, kw_only=True)
class Point:
    """Cost of a global round at one size; CPU seconds by tier, peak resident MB of the fattest process of a tier."""

    axis: Literal["devices", "model", "lps"]
    devices: int
    model_mb: float
    lps: int
    wall_s: float
    cpu_s: dict[str, float]
    peak_mb: dict[str, float]


@dataclass(kw_only=True)
class Results:
    """One run of the suite."""

    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    loads: dict[str, tuple[float, float]] = field(default_factory=dict)  # one-minute load by part, before and after
    seconds: dict[str, float] = field(default_factory=dict)  # that a part took
    notes: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the results as JSON, whole or not at all."""
        rows = [asdict(row) | {"ratios": row.ratios, "is_met": row.is_met} for row in self.rows]
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self) | {"rows": rows}, indent=1), encoding="utf-8")
        part.rename(path)

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Return the results in a file of `write`."""
        kept = json.loads(path.read_text(encoding="utf-8"))
        rows = [_row(entry) for entry in kept.pop("rows")]
        points = [Point(**entry) for entry in kept.pop("points")]
        return cls(rows=rows, points=points, **kept)


def _row(entry: dict[str, Any]) -> Row:
    derived = {"ratios", "is_met", "aim"}
    aim = Aim(**entry["aim"]) if entry["aim"] else None
    return Row(aim=aim, **{key: value for key, value in entry.items() if key not in derived})


def spread(values: Sequence[float]) -> str:
    """Median and range: `1.2 (1.1 to 1.4)`."""
    if not values:
        return "–"
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))} to {number(max(values))})"


def number(value: float) -> str:
    """Three figures, no exponent.

    >>> [number(value) for value in (0.01234, 1.234, 12.34, 1234.5)]
    ['0.0123', '1.23', '12.3', '1234']
    """
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")
