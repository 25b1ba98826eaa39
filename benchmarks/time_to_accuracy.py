"""Times until methods reach an accuracy on several links, from the runs of a sweep on the virtual clock.

    python -m benchmarks.time_to_accuracy DIR --link LTE= --link NB-IoT=links.device-lps.preset=nb-iot --out FIGURE.svg

Nothing is trained again. Prints for each link and cell the virtual seconds until devices are in their groups, until the
accuracy over the examples of all devices first reaches each of `--levels`, and of the whole run. These are mean ±
sample standard deviation over the seeds, or the number of seeds that reach the level. The figure has the mean over the
seeds, and where a device's time went.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from emulator.estimates.retime import retime, write_retimed
from emulator.results.read_record import RunRecord, load_record
from emulator.results.report.style import COLOURS, MUTED, drawing
from fedstrata.record.timeline import PARTS

PART_COLOURS = (COLOURS[5], COLOURS[2], COLOURS[4], "#d5dbe1")
UNITS = ((7_200, 3_600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))
Curve = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Hold the times of a run on one link."""

    curve: Curve  # (virtual seconds, accuracy over the examples of all devices)
    seconds: float
    grouping_s: float
    parts: Mapping[str, float]  # parts of LPS rounds, by name

    def reaches(self, level: float) -> float | None:
        """Return when the accuracy first reaches this level; None if it never does."""
        return next((at_s for at_s, accuracy in self.curve if accuracy >= level), None)


def curve_of(record: RunRecord) -> Curve:
    """Return the accuracy over the examples of all devices, by time. At each time, every LPS is represented by its
    newest accuracy. The curve begins when all LPSs have an accuracy.
    """
    ready = {(row.lps_id, row.lps_round): row.ready_s for row in record.timeline if row.tier == "lps"}
    measured = sorted(
        (ready[row.lps_id, row.lps_round], row.lps_id, row.metrics["accuracy"], row.num_examples)
        for row in record.rounds
        if row.metrics["accuracy"] is not None
    )
    latest: dict[str, tuple[float, int]] = {}
    points: dict[float, float] = {}
    for at_s, name, accuracy, examples in measured:
        latest[name] = accuracy, examples
        if len(latest) == len(record.summary.by_lps):
            points[at_s] = sum(each * n for each, n in latest.values()) / sum(n for _, n in latest.values())
    return list(points.items())


def timed(folder: Path, changes: Sequence[str]) -> Timed:
    """Return the times that a finished run would have with changed links. `changes` are KEY=VALUE texts."""
    with tempfile.TemporaryDirectory() as there:
        write_retimed(retime(folder, changes), Path(there) / "run")
        record = load_record(Path(there) / "run")
    virtual = record.summary.virtual
    assert virtual is not None
    parts = {part: float(getattr(virtual.lps, part)) for part in PARTS}
    return Timed(curve=curve_of(record), seconds=virtual.seconds, grouping_s=virtual.before.total, parts=parts)


def said(values: Sequence[float | None]) -> str:
    """Return mean ± sample standard deviation as text. If some values are None, return how many are
    not, such as `2 of 3`.
    """
    found = [value for value in values if value is not None]
    if len(found) < len(values):
        return f"{len(found)} of {len(values)}"
    return f"{statistics.mean(found):.1f} ± {statistics.stdev(found) if len(found) > 1 else 0:.1f}"


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean accuracy over the seeds, by time. The curve has a point at each time at which a run has a new
    accuracy. It begins when all runs have an accuracy.
    """
    latest: dict[int, float] = {}
    points: dict[float, float] = {}
    for at_s, number, accuracy in sorted((t, n, a) for n, curve in enumerate(curves) for t, a in curve):
        latest[number] = accuracy
        if len(latest) == len(curves):
            points[at_s] = statistics.mean(latest.values())
    return list(points.items())


def draw_curves(axes: Axes, name: str, cells: Mapping[str, Sequence[Timed]]) -> None:
    """Draw the accuracy over time on one link."""
    longest = max(run.seconds for runs in cells.values() for run in runs)
    _, unit_s, unit = next(each for each in UNITS if longest >= each[0])
    for (cell, runs), colour in zip(cells.items(), COLOURS, strict=False):
        curve = mean_curve([run.curve for run in runs])
        xs, ys = [at_s / unit_s for at_s, _ in curve], [100 * accuracy for _, accuracy in curve]
        axes.plot(xs, ys, color=colour, linewidth=1.7, drawstyle="steps-post", label=cell)
    axes.set_title(f"{name}: accuracy, %")
    axes.set_xlabel(f"virtual time, {unit}")
    axes.grid(axis="y")


def draw_parts(axes: Axes, name: str, cells: Mapping[str, Sequence[Timed]]) -> None:
    """Draw the parts of the mean device's time on one link."""
    names = [*cells][::-1]
    left = [0.0] * len(names)
    for part, colour in zip(("grouping", *PARTS), (COLOURS[3], *PART_COLOURS), strict=True):
        lengths = [
            statistics.mean(run.grouping_s if part == "grouping" else run.parts[part] for run in cells[cell])
            for cell in names
        ]
        axes.barh(names, lengths, left=left, color=colour, label=part)
        left = [before + length for before, length in zip(left, lengths, strict=True)]
    axes.set_title(f"{name}: a device's seconds")
    axes.set_xlim(right=1.3 * max(left))  # room for the legend
    axes.tick_params(axis="y", labelcolor=MUTED)


def draw(links: Mapping[str, Mapping[str, Sequence[Timed]]], path: Path) -> None:
    """Draw two figures per link: accuracy over time, and the parts of a device's time."""
    with drawing():
        figure = Figure(figsize=(5.0 * len(links), 6.4), facecolor="white", layout="constrained")
        axes = figure.subplots(2, len(links), squeeze=False, height_ratios=(3, 2))
        for number, (name, cells) in enumerate(links.items()):
            draw_curves(axes[0][number], name, cells)
            draw_parts(axes[1][number], name, cells)
        axes[0][-1].legend(loc="lower right")
        axes[1][-1].legend(loc="lower right", fontsize=7)
        figure.savefig(path, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))


def main() -> None:
    """Time all runs of the sweep on each link."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--link", action="append", required=True, metavar="NAME=KEY=VALUE[;…]")
    parser.add_argument("--levels", type=float, nargs="+", default=[70, 72, 74, 75, 76, 77])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    links: dict[str, dict[str, list[Timed]]] = {}
    for name, _, changes in (link.partition("=") for link in options.link):
        of_link = links[name] = {}
        for cell in sorted((options.sweep / "runs").iterdir()):
            runs = sorted(cell.glob("seed-*"))
            of_link[cell.name] = [timed(run, [c for c in changes.split(";") if c]) for run in runs]
        levels = " | ".join(f"{level:g} %" for level in options.levels)
        print(f"\n{name}, seconds\n\n| cell | grouped | {levels} | in all |")
        print("|---|" + "---:|" * (len(options.levels) + 2))
        for cell_name, times in of_link.items():
            reached = [said([run.reaches(level / 100) for run in times]) for level in options.levels]
            ends = [said([run.grouping_s for run in times]), *reached, said([run.seconds for run in times])]
            print(f"| {cell_name} | {' | '.join(ends)} |")
    if options.out is not None:
        draw(links, options.out)


if __name__ == "__main__":
    main()
