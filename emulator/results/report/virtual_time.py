"""Draw the main metric over virtual time, for comparisons and sweeps of runs on the virtual clock."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.results.read_record import RunRecord
from emulator.results.report.comparison_figure import title_of
from emulator.results.report.style import COLOURS, drawing, entry_width, legend_columns, save, shorten
from fedstrata.tasks import Metric

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

UNITS = ((2 * 86_400, 86_400, "days"), (2 * 3_600, 3_600, "hours"), (1_200, 60, "minutes"), (0, 1, "seconds"))
PANELS_IN_A_ROW = 3
Curve = Sequence[tuple[float, float]]


def write_metric_over_time(curves: Mapping[str, Curve], metric: Metric, folder: Path) -> None:
    """Write the figure compare-time.png and compare-time.svg, with one curve per run."""
    from matplotlib.figure import Figure

    with drawing():
        figure = Figure(figsize=(8.0, 4.4), facecolor="white")
        axes = figure.subplots()
        figure.subplots_adjust(left=0.08, right=0.97, bottom=0.17, top=0.9)
        _draw(axes, {name: [curve] for name, curve in curves.items()}, metric, list(curves), "")
        axes.legend(frameon=False, fontsize=8.5)
        save(figure, folder, "compare-time")


def write_panels(panels: Mapping[str, Mapping[str, Sequence[Curve]]], metric: Metric, folder: Path) -> None:
    """Write the figure time.png and time.svg. It has a panel per setting, a colour per cell, and a curve per run."""
    from matplotlib.figure import Figure

    cells = list(dict.fromkeys(cell for panel in panels.values() for cell in panel))
    columns = min(PANELS_IN_A_ROW, len(panels))
    rows = -(-len(panels) // columns)
    with drawing():
        width = max(6.0, 4.0 * columns, entry_width(cells) + 0.2)
        figure = Figure(figsize=(width, 3.4 * rows + 0.3), facecolor="white", layout="constrained")
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
        places = [axes for row in grid for axes in row]
        for axes, (setting, panel) in zip(places, panels.items(), strict=False):
            _draw(axes, panel, metric, cells, shorten(setting, 60))
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        for row in grid:
            row[0].set_ylabel(f"{metric.name}{', %' if metric.is_percent else ''}")
        handles, labels = _legend(places)
        figure.legend(handles, labels, loc="outside lower center", ncols=legend_columns(cells, width, 4), frameon=False)
        save(figure, folder, "time")


def _legend(places: Sequence["Axes"]) -> tuple[list["Artist"], list[str]]:
    """Return one legend entry per label. Each entry comes from the first panel with this label."""
    found: dict[str, Artist] = {}
    for axes in places:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)


def _draw(
    axes: "Axes", curves: Mapping[str, Sequence[Curve]], metric: Metric, names: Sequence[str], title: str
) -> None:
    """Draw each curve as steps at the times of new models. The position of a curve's name in `names` decides its
    colour.
    """
    longest = max((curve[-1][0] for each in curves.values() for curve in each), default=0.0)
    _, unit_s, unit = next(each for each in UNITS if longest >= each[0])
    for name, each in curves.items():
        for number, curve in enumerate(each):
            xs, ys = (
                [at_s / unit_s for at_s, _ in curve],
                [(100 if metric.is_percent else 1) * value for _, value in curve],
            )
            colour, label = COLOURS[names.index(name) % len(COLOURS)], "" if number else name
            marker = "o" if len(curve) == 1 else None  # a line through one point is invisible
            axes.plot(xs, ys, color=colour, linewidth=1.7, drawstyle="steps-post", marker=marker, label=label)
    axes.grid(axis="y")
    axes.set_title(title or title_of(metric))
    axes.set_xlabel(f"virtual time, {unit}")


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
