"""The figure of the three tiers: GPS, LPSs and devices, with the bytes that each link carried."""

from collections import Counter
from typing import TYPE_CHECKING

from emulator.record import Link, RunRecord
from emulator.report.style import INK, LINE, MUTED, Look, blank_axes, labels_of, shorten
from emulator.report.units import counted, human_bytes, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_DRAWN_DEVICES = 30
GPS_Y, LPS_Y, DEVICE_Y = 92.0, 57.0, 20.0
LEFT, RIGHT = 18.0, 85.0  # where clusters are drawn
SIZE = (10.0, 4.5)
Places = dict[str, tuple[float, float]]


def draw_topology(figure: "Figure", record: RunRecord, look: Look) -> str:
    """Draw the tiers and say in words what they show."""
    summary = record.summary
    axes = blank_axes(figure)
    is_small = sum(map(len, summary.by_lps.values())) <= MAX_DRAWN_DEVICES
    places = _places(record, by_size=is_small)
    _draw_gps(axes, places)
    draw_devices = _draw_devices if is_small else _draw_counts
    last = draw_devices(axes, record, look, places)
    _draw_lpss(axes, record, places)
    _draw_links(axes, record, last)
    _draw_legend(axes, look, is_small=is_small)
    sizes = ", ".join(f"{lps_id} {counted(len(ids), 'device')}" for lps_id, ids in summary.by_lps.items())
    return f"One GPS over {counted(len(summary.by_lps), 'LPS')}: {sizes or 'none'}. {_links_in_words(record)}"


def _places(record: RunRecord, *, by_size: bool) -> Places:
    """Left and right end of each cluster, wide as it has devices, or all alike."""
    clusters = record.summary.by_lps
    # 2.2 devices are as wide as the label of an LPS
    weights = {lps_id: max(2.2, len(ids)) if by_size else 1.0 for lps_id, ids in clusters.items()}
    scale = (RIGHT - LEFT) / (sum(weights.values()) or 1.0)
    places, x = {}, LEFT
    for lps_id, weight in weights.items():
        places[lps_id] = (x, x + weight * scale)
        x += weight * scale
    return places


def _middle(place: tuple[float, float]) -> float:
    return (place[0] + place[1]) / 2


def _draw_gps(axes: "Axes", places: Places) -> None:
    top = _middle((LEFT, RIGHT))
    for place in places.values():
        axes.plot([top, _middle(place)], [GPS_Y, LPS_Y], color=LINE, linewidth=1.8, zorder=1)
    box = {"boxstyle": "round,pad=0.55", "facecolor": INK, "edgecolor": "none"}
    axes.text(top, GPS_Y, "GPS", color="white", weight="bold", size=11, ha="center", va="center", bbox=box, zorder=3)


def _draw_lpss(axes: "Axes", record: RunRecord, places: Places) -> None:
    """A box for each LPS; names alone where boxes would touch, dots where names would."""
    summary = record.summary
    crowded, packed = len(places) > 8, len(places) > 36
    box = {"boxstyle": "round,pad=0.45", "facecolor": "white", "edgecolor": MUTED, "linewidth": 1.1}
    for lps_id, place in places.items():
        if packed:
            axes.plot(_middle(place), LPS_Y, marker="s", color=MUTED, markersize=3, zorder=3)
            continue
        text = shorten(lps_id, 10)
        if not crowded:
            accuracy = summary.accuracy.get(lps_id)
            text += f"\n{counted(len(summary.by_lps[lps_id]), 'device')}"
            text += f"\n{percent(accuracy)}" if accuracy is not None else ""
        axes.text(
            _middle(place), LPS_Y, text, size=7 if crowded else 8.5, rotation=90 if len(places) > 14 else 0,
            ha="center", va="center", bbox=box, zorder=3, linespacing=1.3,
        )  # fmt: skip


def _draw_devices(axes: "Axes", record: RunRecord, look: Look, places: Places) -> float:
    """A mark for each device below its LPS; gives the right end of the row."""
    x = LEFT
    clusters = record.summary.by_lps
    ids = [device for members in clusters.values() for device in members]
    labels = dict(zip(ids, labels_of(ids)[0], strict=True)) if ids else {}
    rotation = 0 if len(ids) <= 10 and max(map(len, labels.values()), default=0) <= 10 else 45
    for lps_id, members in clusters.items():
        left, right = places[lps_id]
        step = (right - left) / max(2.2, len(members))
        start = _middle(places[lps_id]) - step * (len(members) - 1) / 2
        for i, device in enumerate(members):
            x = start + i * step
            colour, marker = look.device(device)
            axes.plot([_middle(places[lps_id]), x], [LPS_Y, DEVICE_Y], color=LINE, linewidth=0.9, zorder=1)
            axes.plot(x, DEVICE_Y, marker=marker, color=colour, markersize=10, markeredgecolor="white", zorder=3)
            axes.text(
                x, DEVICE_Y - 5.5, labels[device], size=7.5, color=MUTED, rotation=rotation,
                ha="right" if rotation else "center", va="top", rotation_mode="anchor",
            )  # fmt: skip
    return x + 1.5


def _draw_counts(axes: "Axes", record: RunRecord, look: Look, places: Places) -> float:
    """For each cluster a column, high as it has devices, in their tasks' colours; gives the right end."""
    right = LEFT
    clusters = record.summary.by_lps
    most = max(map(len, clusters.values()))
    top, height = DEVICE_Y + 13.0, 24.0
    for lps_id, members in clusters.items():
        x, width = _middle(places[lps_id]), min(9.0, 0.7 * (places[lps_id][1] - places[lps_id][0]))
        axes.plot([x, x], [LPS_Y, top], color=LINE, linewidth=1.8, zorder=1)
        y = top
        for task, devices in Counter(look.device_tasks.get(device, "") for device in members).most_common():
            tall = height * devices / most
            colour = look.tasks.get(task, (MUTED, ""))[0]
            axes.bar(x, -tall, width, bottom=y, color=colour, edgecolor="white", linewidth=0.8, zorder=2)
            if tall > 4 and width > 2:
                axes.text(
                    x,
                    y - tall / 2,
                    str(devices),
                    color="white",
                    size=8,
                    weight="bold",
                    ha="center",
                    va="center",
                )
            y -= tall
        right = x + width / 2
    return right + 1.0


def _draw_links(axes: "Axes", record: RunRecord, last: float) -> None:
    """What each link carried, beside it; the link from devices to the GPS goes round the LPSs."""
    summary = record.summary
    for y, tier in ((GPS_Y, "cloud"), (LPS_Y, "edge"), (DEVICE_Y, "devices")):
        axes.text(0.5, y, tier, color=MUTED, size=9, style="italic", va="center")
    _link_text(axes, (0.5, (GPS_Y + LPS_Y) / 2), record, "lps-gps", "shared layers")
    _link_text(axes, (0.5, (LPS_Y + DEVICE_Y) / 2), record, "device-lps", "models and updates")
    x = RIGHT + 2.0
    y = DEVICE_Y if len(record.summary.cluster_of_device) <= MAX_DRAWN_DEVICES else DEVICE_Y + 12.0
    round_the_lpss = ([last, x, x, _middle((LEFT, RIGHT)) + 2.5], [y, y, GPS_Y, GPS_Y])
    axes.plot(*round_the_lpss, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
    what = "enrolment, profiles" if record.relevance is not None else "enrolment"
    _link_text(axes, (x + 1.0, (GPS_Y + DEVICE_Y) / 2), record, "device-gps", what)
    if summary.excluded:
        note = f"{counted(len(summary.excluded), 'device')} excluded"
        axes.text(x + 1.0, DEVICE_Y - 6, note, color=MUTED, size=8, va="center")


def _link_text(axes: "Axes", at: tuple[float, float], record: RunRecord, name: Link, what: str) -> None:
    x, y = at
    link = record.summary.bytes.get(name)
    sizes = f"↓ {human_bytes(link.down)}\n↑ {human_bytes(link.up)}" if link else "not counted"
    axes.text(x, y + 4.6, name, size=9, weight="bold", va="bottom")
    axes.text(x, y + 3.4, f"{sizes}\n{what}", size=8, color=MUTED, va="top", linespacing=1.35)


def _draw_legend(axes: "Axes", look: Look, *, is_small: bool) -> None:
    if not look.tasks:
        return
    from matplotlib.lines import Line2D

    marks = [
        Line2D(
            [],
            [],
            color=colour,
            marker=marker if is_small else "s",
            linestyle="none",
            markersize=7,
            label=shorten(task),
        )
        for task, (colour, marker) in look.tasks.items()
    ]
    axes.legend(
        handles=marks,
        loc="lower center",
        ncols=min(8, len(marks)),
        bbox_to_anchor=(0.515, -0.01),
        handletextpad=0.1,
    )


def _links_in_words(record: RunRecord) -> str:
    return "; ".join(
        f"{name}: {human_bytes(link.down)} down, {human_bytes(link.up)} up"
        for name, link in record.summary.bytes.items()
    )
