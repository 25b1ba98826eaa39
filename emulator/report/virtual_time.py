"""What a comparison shows of the virtual clock: accuracy over time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.report.style import COLOURS, INK, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (10.0, 2.9)
UNITS = ((2 * 86_400, 86_400, "days"), (2 * 3_600, 3_600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))
Curve = Sequence[tuple[float, float]]


def write_accuracy_over_time(curves: Mapping[str, Curve], folder: Path) -> None:
    """Write compare-time.png and compare-time.svg: a curve a run."""
    from matplotlib.figure import Figure

    with drawing():
        figure = Figure(figsize=(8.0, 4.4), facecolor="white")
        _draw(figure, curves)
        figure.axes[0].legend(frameon=False, fontsize=8.5)
        for kind in ("png", "svg"):
            metadata = dict.fromkeys(("Date", "Creator", "Format", "Type") if kind == "svg" else ("Software",))
            figure.savefig(folder / f"compare-time.{kind}", format=kind, dpi=160, metadata=metadata)


def _draw(figure: "Figure", curves: Mapping[str, Curve]) -> str:
    """A step for each time at which a better or worse model is there; says in words where they end."""
    axes = figure.subplots()
    figure.subplots_adjust(left=0.08, right=0.97, bottom=0.17, top=0.9)
    longest = max((curve[-1][0] for curve in curves.values()), default=0.0)
    _, unit_s, unit = next(each for each in UNITS if longest >= each[0])
    for number, (name, curve) in enumerate(curves.items()):
        _draw_curve(axes, name, curve, unit_s, COLOURS[number % len(COLOURS)] if name else INK)
    axes.grid(axis="y")
    axes.set_title("Accuracy, %")
    axes.set_xlabel(f"virtual time, {unit}")
    ends = [f"{name or 'it'} ends at {100 * curve[-1][1]:.1f} %" for name, curve in curves.items()]
    return f"Mean accuracy over virtual time. {', '.join(ends)}"


def _draw_curve(axes: "Axes", name: str, curve: Curve, unit_s: int, colour: str) -> None:
    xs, ys = [at_s / unit_s for at_s, _ in curve], [100 * accuracy for _, accuracy in curve]
    axes.plot(xs, ys, color=colour, linewidth=1.7, drawstyle="steps-post", label=name)
