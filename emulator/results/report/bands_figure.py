"""Draw curves with bands over seeds: a panel per setting, and a colour per cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulator.results.curves import Abscissa, BandPoint
from emulator.results.report.comparison_figure import title_of
from emulator.results.report.style import COLOURS, drawing, entry_width, legend_columns, save, shorten
from emulator.results.report.virtual_time import time_unit
from fedstrata.tasks import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS_IN_A_ROW = 3
LINES = ("-", "--", ":")  # for more cells than colours
BYTE_UNITS = ((2e9, 1e9, "GB"), (2e6, 1e6, "MB"), (0, 1e3, "kB"))
KINDS = ("png", "svg", "pdf")
Panels = Mapping[str, Mapping[str, Sequence[BandPoint]]]  # by setting and by cell


@dataclass(frozen=True, kw_only=True)
class BandsFigure:
    """Draw the mean over seeds as a line, and mean ± standard deviation as a band."""

    panels: Panels
    metric: Metric
    over: Abscissa

    @property
    def _cells(self) -> list[str]:
        return list(dict.fromkeys(cell for panel in self.panels.values() for cell in panel))

    @property
    def _unit(self) -> tuple[float, str]:
        """The divisor of x, and the label of the axis."""
        longest = max(points[-1].x for panel in self.panels.values() for points in panel.values())
        if self.over.name == "bytes":
            size, unit = next((size, unit) for least, size, unit in BYTE_UNITS if longest >= least)
            return size, f"{self.over.said}, {unit}"
        if self.over.name == "time":
            unit_s, unit = time_unit(longest)
            return unit_s, f"{self.over.said}, {unit}"
        return 1.0, self.over.said

    def write(self, folder: Path) -> None:
        """Write the figure as PNG, SVG and PDF, such as rounds.png, rounds.svg and rounds.pdf."""
        from matplotlib.figure import Figure

        columns = min(PANELS_IN_A_ROW, len(self.panels))
        rows = -(-len(self.panels) // columns)
        width = max(6.0, 4.0 * columns, entry_width(self._cells) + 0.2)
        with drawing():
            figure = Figure(figsize=(width, 3.4 * rows + 0.3), facecolor="white", layout="constrained")
            grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
            places = [axes for row in grid for axes in row]
            for axes, (setting, panel) in zip(places, self.panels.items(), strict=False):
                self._draw(axes, panel, shorten(setting, 60))
            for axes in places[len(self.panels) :]:
                axes.set_axis_off()
            for row in grid:
                row[0].set_ylabel(f"{self.metric.name}{', %' if self.metric.is_percent else ''}")
            entries = self._entries(places)
            columns = legend_columns(self._cells, width, 4)
            figure.legend(entries.values(), entries, loc="outside lower center", ncols=columns, frameon=False)
            save(figure, folder, self.over.name, KINDS)

    def _draw(self, axes: "Axes", panel: Mapping[str, Sequence[BandPoint]], title: str) -> None:
        factor, (unit, label), cells = 100 if self.metric.is_percent else 1, self._unit, self._cells
        steps: dict[str, Any] = {} if self.over.name == "rounds" else {"drawstyle": "steps-post"}
        for cell, points in panel.items():
            index = cells.index(cell)
            colour, line = COLOURS[index % len(COLOURS)], LINES[index // len(COLOURS) % len(LINES)]
            xs = [point.x / unit for point in points]
            means = [factor * (point.spread.mean or 0.0) for point in points]
            widths = [factor * (point.spread.deviation or 0.0) for point in points]
            low, high = ([mean + sign * width for mean, width in zip(means, widths, strict=True)] for sign in (-1, 1))
            marker = "o" if len(points) == 1 else None  # a line through one point is invisible
            axes.plot(xs, means, color=colour, linestyle=line, linewidth=1.7, marker=marker, label=cell, **steps)
            if any(widths):
                step = {"step": "post"} if steps else {}
                axes.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0, **step)  # type: ignore[arg-type]
        axes.grid(axis="y")
        axes.set_title(title or title_of(self.metric))
        axes.set_xlabel(label)

    @staticmethod
    def _entries(places: Sequence["Axes"]) -> dict[str, Any]:
        """Return one legend entry per label. Each entry comes from the first panel with this label."""
        found: dict[str, Any] = {}
        for axes in places:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                found.setdefault(label, handle)
        return found
