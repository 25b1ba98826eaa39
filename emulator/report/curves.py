"""The figures over rounds: accuracy and loss of each cluster, and bytes as they add up."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from emulator.record import LINKS, RoundRow, RunRecord, is_number
from emulator.report.style import DOWN, FAINT, INK, LINE, MAX_COLOURED, MUTED, UP, Look, shorten, spread
from emulator.report.units import byte_unit, human_bytes, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES_SIZE = (10.0, 3.4)
BYTES_SIZE = (10.0, 2.9)
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
Points = list[tuple[int, float]]


def round_numbers(rounds: Sequence[RoundRow]) -> list[int]:
    """Each row's LPS round over the whole run, also where `lps_round` begins anew in each global round."""
    begins_anew = any(row.global_round > 1 and row.lps_round == 1 for row in rounds)
    per_global = max((row.lps_round for row in rounds), default=0) if begins_anew else 0
    return [(row.global_round - 1) * per_global + row.lps_round for row in rounds]


def cumulative_bytes(rounds: Sequence[RoundRow]) -> tuple[list[int], list[int], list[int]]:
    """LPS rounds, and what all LPSs together had received from (up) and sent to (down) devices after each."""
    numbers = round_numbers(rounds)
    ticks = sorted(set(numbers))
    up, down = dict.fromkeys(ticks, 0), dict.fromkeys(ticks, 0)
    for number, row in zip(numbers, rounds, strict=True):
        up[number] += row.bytes_up
        down[number] += row.bytes_down
    return ticks, list(accumulate(up.values())), list(accumulate(down.values()))


def draw_curves(figure: "Figure", record: RunRecord, look: Look) -> str:
    """Accuracy at the left, loss at the right, a line a cluster; says in words where they end."""
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.06, right=0.915, bottom=0.13, top=0.88, wspace=0.34)
    accuracy = _lines(record, lambda row: 100 * row.accuracy if is_number(row.accuracy) else None)
    loss = _lines(record, lambda row: row.loss if is_number(row.loss) else None)
    _draw_lines(left, accuracy, look)
    _draw_lines(right, loss, look)
    left.set(title="Accuracy, %")
    right.set(title="Loss")
    for axes in (left, right):
        _mark_rounds(axes, record.rounds)
    ends = [f"{lps_id} ends at {percent(points[-1][1] / 100)}" for lps_id, points in accuracy.items() if points]
    return f"Accuracy and loss of each cluster's model over LPS rounds. {', '.join(ends)}"


def _lines(record: RunRecord, value: Callable[[RoundRow], float | None]) -> dict[str, Points]:
    """For each cluster the rounds that have a value, with it."""
    lines: dict[str, Points] = {lps_id: [] for lps_id in record.summary.by_lps}
    for number, row in zip(round_numbers(record.rounds), record.rounds, strict=True):
        drawn = value(row)
        if drawn is not None:
            lines[row.lps_id].append((number, drawn))
    return {lps_id: sorted(points) for lps_id, points in lines.items()}


def _draw_lines(axes: "Axes", lines: Mapping[str, Points], look: Look) -> None:
    """Coloured and named lines, or, of more clusters than there are colours, thin ones with their median."""
    is_few = len(lines) <= MAX_COLOURED
    for i, (lps_id, points) in enumerate(lines.items()):
        if not points:
            continue
        xs, ys = zip(*points, strict=True)
        colour, width = (look.clusters[lps_id], 1.7) if is_few else (LINE, 0.8)
        marker = "o" if is_few and len(points) <= 25 else ""
        dashes = DASHES[i % len(DASHES)] if is_few else "-"
        axes.plot(xs, ys, color=colour, linewidth=width, linestyle=dashes, marker=marker, markersize=3.5)
    axes.grid(axis="y")
    if not any(lines.values()):
        axes.text(0.5, 0.5, "not evaluated", color=MUTED, ha="center", transform=axes.transAxes)
        return
    axes.margins(x=0.03, y=0.08)
    if is_few:
        _name_ends(axes, lines, look)
    else:
        _draw_median(axes, lines)


def _name_ends(axes: "Axes", lines: Mapping[str, Points], look: Look) -> None:
    """Each line's name beside its end, moved apart where ends meet."""
    drawn = {lps_id: points for lps_id, points in lines.items() if points}
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    last = max(points[-1][0] for points in drawn.values())
    heights = spread([points[-1][1] for points in drawn.values()], 0.075 * (high - low), low, high)
    for (lps_id, points), height in zip(drawn.items(), heights, strict=True):
        axes.annotate(
            shorten(lps_id, 10), (last, points[-1][1]), (1.02, (height - low) / (high - low)),
            textcoords="axes fraction", color=look.clusters[lps_id], size=8.5, weight="bold", va="center",
            annotation_clip=False,
        )  # fmt: skip


def _draw_median(axes: "Axes", lines: Mapping[str, Points]) -> None:
    from statistics import median

    at: dict[int, list[float]] = {}
    for points in lines.values():
        for number, value in points:
            at.setdefault(number, []).append(value)
    numbers = sorted(at)
    axes.plot(numbers, [median(at[number]) for number in numbers], color=INK, linewidth=2.0)
    axes.annotate(
        "median",
        (1.02, median(at[numbers[-1]])),
        xycoords=("axes fraction", "data"),
        size=8.5,
        weight="bold",
        va="center",
    )


def _mark_rounds(axes: "Axes", rounds: Sequence[RoundRow]) -> None:
    """Global rounds as alternating bands, numbered at the top; LPS rounds below."""
    bands: dict[int, tuple[int, int]] = {}
    for number, row in zip(round_numbers(rounds), rounds, strict=True):
        first, last = bands.get(row.global_round, (number, number))
        bands[row.global_round] = (min(first, number), max(last, number))
    every = max(1, -(-len(bands) // 12))
    ticks = [(global_round, band) for global_round, band in sorted(bands.items()) if (global_round - 1) % every == 0]
    for global_round, (first, last) in bands.items():
        if len(bands) <= 20 and global_round % 2 == 0:
            axes.axvspan(first - 0.5, last + 0.5, color=FAINT, zorder=0, linewidth=0)
    axes.set_xlabel("LPS round")
    axes.locator_params(axis="x", integer=True)
    if bands:
        axes.set_xlim(0.5, max(last for _, last in bands.values()) + 0.5)
    top = axes.secondary_xaxis("top")
    top.set_xticks([(first + last) / 2 for _, (first, last) in ticks], [f"G{number}" for number, _ in ticks])
    top.tick_params(length=0, labelsize=7.5, pad=1)
    top.spines["top"].set_visible(False)


def draw_bytes(figure: "Figure", record: RunRecord) -> str:
    """Bytes between devices and LPSs as they add up, and the totals of the links; says them in words."""
    left, right = figure.subplots(1, 2, width_ratios=(1, 1))
    figure.subplots_adjust(left=0.06, right=0.93, bottom=0.15, top=0.91, wspace=0.28)
    _draw_growth(left, record.rounds)
    _draw_totals(right, record)
    totals = [f"{name} {human_bytes(link.total)}" for name, link in record.summary.bytes.items()]
    return f"Bytes measured on the wire. Totals: {', '.join(totals) or 'none counted'}"


def _draw_growth(axes: "Axes", rounds: Sequence[RoundRow]) -> None:
    numbers, up, down = cumulative_bytes(rounds)
    factor, unit = byte_unit(up[-1] + down[-1] if numbers else 0)
    axes.set(title=f"device-lps, added up over rounds, {unit}")
    if not numbers:
        axes.text(0.5, 0.5, "no rounds", color=MUTED, ha="center", transform=axes.transAxes)
    xs = [0, *numbers]
    layers = [[0.0, *(value / factor for value in values)] for values in (down, up)]
    axes.stackplot(xs, layers, colors=(DOWN, UP), labels=("down: models", "up: updates"), linewidth=0, alpha=0.9)
    axes.set(xlim=(0, max(xs) or 1), ylim=(0, None))
    axes.grid(axis="y")
    axes.set_xlabel("LPS round")
    axes.locator_params(axis="x", integer=True)
    axes.legend(loc="upper left", reverse=True)


def _draw_totals(axes: "Axes", record: RunRecord) -> None:
    links = [(name, record.summary.link(name)) for name in LINKS]
    factor, unit = byte_unit(max(max(link.up, link.down) for _, link in links))
    for row, (_, link) in enumerate(links):
        for offset, count, colour in ((-0.19, link.down, DOWN), (0.19, link.up, UP)):
            axes.barh(row + offset, count / factor, height=0.34, color=colour)
            axes.annotate(
                human_bytes(count),
                (count / factor, row + offset),
                (4, 0),
                textcoords="offset points",
                size=8,
                va="center",
            )
    axes.set(title=f"Totals of the links, {unit}")
    axes.set_yticks(range(len(links)), [name for name, _ in links])
    axes.tick_params(axis="y", length=0, labelsize=8.5)
    axes.set_ylim(len(links) - 0.5, -0.5)
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    axes.grid(axis="x")
