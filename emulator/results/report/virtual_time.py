"""Draw the main metric over virtual time, for comparisons of runs on the virtual clock."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.results.report.comparison_figure import title_of
from emulator.results.report.style import COLOURS, drawing, save
from fedstrata.tasks import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNITS = ((2 * 86_400, 86_400, "days"), (2 * 3_600, 3_600, "hours"), (1_200, 60, "minutes"), (0, 1, "seconds"))
Curve = Sequence[tuple[float, float]]


def write_metric_over_time(curves: Mapping[str, Curve], metric: Metric, folder: Path) -> None:
    """Write the figure compare-time.png and compare-time.svg, with one curve per run."""
    from matplotlib.figure import Figure

    with drawing():
        figure = Figure(figsize=(8.0, 4.4), facecolor="white")
        axes = figure.subplots()
        figure.subplots_adjust(left=0.08, right=0.97, bottom=0.17, top=0.9)
        _draw(axes, curves, metric)
        axes.legend(frameon=False, fontsize=8.5)
        save(figure, folder, "compare-time")


def _draw(axes: "Axes", curves: Mapping[str, Curve], metric: Metric) -> None:
    """Draw each curve as steps at the times of new models."""
    unit_s, unit = time_unit(max(curve[-1][0] for curve in curves.values()))
    factor = 100 if metric.is_percent else 1
    for index, (name, curve) in enumerate(curves.items()):
        xs, ys = [at_s / unit_s for at_s, _ in curve], [factor * value for _, value in curve]
        marker = "o" if len(curve) == 1 else None  # a line through one point is invisible
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(xs, ys, color=colour, linewidth=1.7, drawstyle="steps-post", marker=marker, label=name)
    axes.grid(axis="y")
    axes.set_title(title_of(metric))
    axes.set_xlabel(f"virtual time, {unit}")


def time_unit(longest_s: float) -> tuple[int, str]:
    """Return the unit for times up to `longest_s` seconds: its length in seconds, and its name."""
    return next((unit_s, unit) for least, unit_s, unit in UNITS if longest_s >= least)
