"""The figure of cost and memory by devices, model size and LPSs."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.suite.results import Point, Results, number

TIERS = {"device": ("devices", "#4477aa"), "lps": ("LPSs", "#ee6677"), "gps": ("GPS", "#228833")}
AXES = {"devices": "devices", "model": "model, MB", "lps": "LPSs"}


def draw(results: Results, path: Path) -> None:
    """Draw three columns, one for each size that grows. CPU and seconds of a global round are above, memory below."""
    mpl.rcParams["svg.hashsalt"] = "fedstrata"
    mpl.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(9, 5), layout="constrained")
    grid = figure.subplots(2, 3, sharex="col", sharey="row")
    for column, (axis, label) in enumerate(AXES.items()):
        points = [point for point in results.points if point.axis == axis]
        if points:
            _costs(grid[0, column], points)
            _memory(grid[1, column], points)
        grid[1, column].set_xlabel(label)
    grid[0, 0].set_ylabel("a global round, s")
    grid[1, 0].set_ylabel("peak resident, MB")
    peaks = [point.peak_mb.get(tier, 0.0) for point in results.points for tier in ("lps", "gps")]
    grid[1, 0].set_ylim(0, 1.1 * max(peaks))
    grid[0, 0].legend(fontsize="small", frameon=False)
    grid[1, 0].legend(fontsize="small", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _size(point: Point) -> float:
    return {"devices": point.devices, "model": point.model_mb, "lps": point.lps}[point.axis]


def _costs(axes: Axes, points: list[Point]) -> None:
    sizes = [_size(point) for point in points]
    for tier, (label, colour) in TIERS.items():
        cpu = [max(point.cpu_s[tier], 1e-3) for point in points]
        axes.loglog(sizes, cpu, marker="o", label=f"{label}, CPU", color=colour)
    axes.loglog(sizes, [point.wall_s for point in points], "k--", marker="x", label="by the clock")
    _sizes_as_they_are(axes, sizes)


def _sizes_as_they_are(axes: Axes, sizes: list[float]) -> None:
    axes.set_xticks(sizes, [number(size) for size in sizes])
    axes.set_xticks([], minor=True)
    axes.grid(visible=True, which="major", alpha=0.3)


def _memory(axes: Axes, points: list[Point]) -> None:
    sizes = [_size(point) for point in points]
    for tier in ("lps", "gps"):
        label, colour = TIERS[tier]
        axes.semilogx(sizes, [point.peak_mb.get(tier, 0) for point in points], marker="o", label=label, color=colour)
    _sizes_as_they_are(axes, sizes)
