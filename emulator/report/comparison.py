"""The figure of a comparison: accuracy by task and method, each seed a dot, with mean and spread."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulator.report.style import COLOURS, MARKERS, MUTED, drawing, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from emulator.compare import Comparison, Group

FORMATS = ("png", "svg")


def draw_comparison(comparison: "Comparison", output: Path) -> None:
    """Write compare.png and compare.svg into the folder `output`."""
    from matplotlib.figure import Figure

    from emulator.compare import MEAN

    groups = comparison.groups
    topics = (*comparison.tasks, MEAN)
    width = min(16.0, max(6.0, 1.6 + len(topics) * (0.5 + 0.42 * len(groups))))
    rows = -(-max(1, len(groups)) // 2)
    height = 4.2 + 0.22 * rows
    with drawing():
        figure = Figure(figsize=(width, height), facecolor="white")
        axes = figure.add_axes((0.62 / width, (0.55 + 0.22 * rows) / height, 1 - 0.8 / width, 3.2 / height))
        is_one_name = len({group.name for group in groups}) == 1
        for i, group in enumerate(groups):
            label = _label_of(group, named=not is_one_name)
            _draw_group(axes, group, topics, (i, len(groups)), label)
        _finish(axes, topics, is_empty=not groups)
        for kind in FORMATS:
            # without a date and a version the same runs give the same file
            metadata = dict.fromkeys(("Date", "Creator", "Format", "Type") if kind == "svg" else ("Software",))
            figure.savefig(output / f"compare.{kind}", format=kind, dpi=160, metadata=metadata)


def _draw_group(axes: "Axes", group: "Group", topics: Sequence[str], place: tuple[int, int], label: str) -> None:
    """In each task's column, at the group's place among all: its seeds as dots, beside them mean and spread."""
    from emulator.compare import accuracy_of

    index, count = place
    style: dict[str, Any] = {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": "none",
    }
    width = 0.86 / count
    for column, topic in enumerate(topics):
        spread = group.accuracy(topic)
        if spread.mean is None:
            continue
        values = [value for value in (accuracy_of(run, topic) for run in group.runs) if value is not None]
        left = column - 0.43 + index * width
        xs = [left + width * (0.12 + 0.4 * (i + 0.5) / len(values)) for i in range(len(values))]
        axes.plot(xs, [100 * value for value in values], **style, markersize=4.5, alpha=0.5, markeredgewidth=0)
        deviation = None if spread.deviation is None else 100 * spread.deviation
        axes.errorbar(
            left + 0.75 * width, 100 * spread.mean, deviation, **style, markersize=7.5, markeredgecolor="white",
            capsize=4, linewidth=1.6, label=label, zorder=3,
        )  # fmt: skip
        label = ""  # once in the legend


def _label_of(group: "Group", *, named: bool) -> str:
    name = f" · {group.name}" if named else ""
    variant = f" [{shorten(group.variant, 60)}]" if group.variant else ""
    return f"{group.method}{name}{variant} ({len(group.seeds)} {'seed' if len(group.seeds) == 1 else 'seeds'})"


def _finish(axes: "Axes", topics: Sequence[str], *, is_empty: bool) -> None:
    axes.set_xticks(range(len(topics)), [shorten(topic) for topic in topics], size=9)
    axes.set(xlim=(-0.5, len(topics) - 0.5), title="Accuracy by task, %: seeds, mean ± standard deviation")
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")
    for edge in range(1, len(topics)):
        axes.axvline(edge - 0.5, color="#d5dce3", linewidth=0.8)
    if is_empty:
        axes.text(0.5, 0.5, "no run was completed", color=MUTED, ha="center", transform=axes.transAxes)
        return
    columns = 3 if len(axes.get_legend_handles_labels()[0]) <= 3 else 2
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=columns, columnspacing=1.5, handletextpad=0.4)
