"""Draw the figure of a comparison: a metric by task and method. Each seed is a dot. Mean and spread are drawn next to
the dots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulator.results.over_seeds import MEAN, Comparison, Form, Group, Spread, headlines_of, known, measured_of
from emulator.results.report.style import (
    COLOURS,
    MARKERS,
    MUTED,
    drawing,
    entry_width,
    legend_columns,
    save,
    shorten,
)
from fedstrata.tasks import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Series:
    """Hold the values that a figure shows in one colour. Each column of the figure has one value per seed."""

    label: str
    values: Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Define a figure with columns. Each column shows the values of several series next to each other."""

    title: str
    names: Sequence[str]
    series: Sequence[Series]
    factor: float = 100.0  # multiplies the values for the drawing

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the figure in inches, including the legend below the axes."""
        return self._width, 4.2 + self._legend_height

    @property
    def _width(self) -> float:
        width = min(16.0, max(6.0, 1.6 + len(self.names) * (0.5 + 0.42 * len(self.series))))
        return max(width, entry_width(self._labels) + 0.2)

    @property
    def _labels(self) -> list[str]:
        return [series.label for series in self.series]

    @property
    def legend_columns(self) -> int:
        """Number of columns of the legend."""
        return legend_columns(self._labels, self._width, 3 if len(self.series) <= 3 else 2)

    @property
    def _legend_height(self) -> float:
        return 0.22 * -(-max(1, len(self.series)) // self.legend_columns)

    def draw(self, figure: "Figure") -> None:
        """Draw the columns on an empty figure, which must have the size `size`."""
        width, height = self.size
        axes = figure.add_axes((0.62 / width, (0.55 + self._legend_height) / height, 1 - 0.8 / width, 3.2 / height))
        for i, series in enumerate(self.series):
            _draw_series(axes, series, self, (i, len(self.series)))
        _finish(axes, self)

    def write(self, folder: Path, name: str) -> None:
        """Write the figure as `name`.png and `name`.svg."""
        from matplotlib.figure import Figure

        with drawing():
            figure = Figure(figsize=self.size, facecolor="white")
            self.draw(figure)
            save(figure, folder, name)


def draw_comparison(comparison: Comparison, output: Path) -> None:
    """Write the figure of a comparison to compare.png and compare.svg in the folder `output`."""

    metric, topics = headlines_of(comparison.runs)[0], (*comparison.tasks, MEAN)
    groups = [group for group in comparison.groups if group.headline == metric]
    is_one_name = len({group.name for group in groups}) == 1
    series = [
        Series(
            label=_label_of(group, named=not is_one_name),
            values={topic: known([measured_of(run, topic) for run in group.runs]) for topic in topics},
        )
        for group in groups
    ]
    title, factor = title_of(metric, "by task"), Form.of(metric).factor
    Columns(title=title, names=topics, series=series, factor=factor).write(output, "compare")


def title_of(metric: Metric, of: str = "") -> str:
    """Return a figure's title, such as: Accuracy by task, %."""
    return " ".join(part for part in (metric.label, of) if part) + (", %" if metric.is_percent else "")


def _draw_series(axes: "Axes", series: Series, columns: Columns, place: tuple[int, int]) -> None:
    """Draw one series in all columns. In each column, seeds are dots, and the mean and the spread are next to them."""

    index, count = place
    style: dict[str, Any] = {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": "none",
    }
    width, label, factor = 0.86 / count, series.label, columns.factor
    for column, name in enumerate(columns.names):
        values = series.values.get(name, ())
        spread = Spread.over(values)
        if spread.mean is None:
            continue
        left = column - 0.43 + index * width
        xs = [left + width * (0.12 + 0.4 * (i + 0.5) / len(values)) for i in range(len(values))]
        axes.plot(xs, [factor * value for value in values], **style, markersize=4.5, alpha=0.5, markeredgewidth=0)
        deviation = None if spread.deviation is None else factor * spread.deviation
        axes.errorbar(
            left + 0.75 * width, factor * spread.mean, deviation, **style, markersize=7.5, markeredgecolor="white",
            capsize=4, linewidth=1.6, label=label, zorder=3,
        )  # fmt: skip
        label = ""  # only one entry in the legend


def _label_of(group: Group, *, named: bool) -> str:
    name = f" · {group.name}" if named else ""
    said = group.variant.replace("training.", "").replace(".name=", "=")
    variant = f" [{shorten(said, 60)}]" if said else ""
    return f"{group.method}{name}{variant} ({len(group.seeds)} {'seed' if len(group.seeds) == 1 else 'seeds'})"


def _finish(axes: "Axes", columns: Columns) -> None:
    count = len(columns.names)
    axes.set_xticks(range(count), [shorten(name) for name in columns.names], size=9)
    axes.set(xlim=(-0.5, count - 0.5), title=f"{columns.title}: seeds, mean ± standard deviation")
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")
    for edge in range(1, count):
        axes.axvline(edge - 0.5, color="#d5dce3", linewidth=0.8)
    if not columns.series:
        axes.text(0.5, 0.5, "no run was completed", color=MUTED, ha="center", transform=axes.transAxes)
        return
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=columns.legend_columns, columnspacing=1.5,
            handletextpad=0.4,
        )  # fmt: skip
