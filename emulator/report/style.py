"""How figures look: palette, type and the way from a matplotlib figure to inline SVG."""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from itertools import cycle
from typing import TYPE_CHECKING, Any

from emulator.record import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f2933"
MUTED = "#5b6875"
LINE = "#b8c2cc"
FAINT = "#eef1f4"
UP, DOWN = "#e69f00", "#0072b2"
# Okabe and Ito's palette, without its yellow, which is too pale on white
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6f4e37", "#7f7f7f")
# for clusters on a page whose tasks wear the colours above (Paul Tol's muted scheme, its darker ones)
CLUSTER_COLOURS = ("#332288", "#882255", "#117733", "#999933", "#cc6677", "#44aa99", "#661100", "#5b6875")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
MAX_COLOURED = len(COLOURS)
RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a `$` in a device's name is a character
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",  # text stays text: it can be searched, selected and read aloud
    "svg.hashsalt": "fedstrata",
}


@dataclass(frozen=True, kw_only=True)
class Look:
    """Colour and marker of each true task and colour of each cluster, the same in all figures of a page."""

    tasks: Mapping[str, tuple[str, str]]
    clusters: Mapping[str, str]
    device_tasks: Mapping[str, str]

    def device(self, device_id: str) -> tuple[str, str]:
        """Colour and marker of a device: its true task's, or neutral where none is known."""
        return self.tasks.get(self.device_tasks.get(device_id, ""), (MUTED, "o"))


def look_of(summary: Summary) -> Look:
    """The colours of a run; a cluster wears its main task's colour where no other cluster does."""
    device_tasks = summary.device_tasks or {}
    names = list(dict.fromkeys(device_tasks.values()))
    tasks = dict(zip(names, cycle(zip(COLOURS, MARKERS, strict=True)), strict=False))
    main = {lps_id: _main_task(ids, device_tasks) for lps_id, ids in {**summary.by_lps, **summary.clusters}.items()}
    if None not in main.values() and len(set(main.values())) == len(main) <= MAX_COLOURED:
        clusters = {lps_id: tasks[task][0] for lps_id, task in main.items() if task is not None}
    else:
        clusters = dict(zip(main, cycle(CLUSTER_COLOURS if tasks else COLOURS), strict=False))
    return Look(tasks=tasks, clusters=clusters, device_tasks=device_tasks)


def _main_task(ids: Sequence[str], device_tasks: Mapping[str, str]) -> str | None:
    tasks = [device_tasks[device] for device in ids if device in device_tasks]
    return max(dict.fromkeys(tasks), key=tasks.count) if tasks else None


@contextmanager
def drawing() -> Iterator[None]:
    """Within it figures are made and saved in our style, on any machine alike."""
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def inline_svg(key: str, title: str, size: tuple[float, float], draw: Callable[["Figure"], str]) -> str:
    """An `<svg>` element for a page. `draw` fills the figure and returns a description in words.

    `key` is unique on the page and prefixes every id; `size` is in inches.
    """
    from matplotlib.figure import Figure

    with drawing():
        figure = Figure(figsize=size)
        description = draw(figure)
        text = io.StringIO()
        figure.savefig(
            text,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
    svg = text.getvalue()
    view_box = re.search(r'viewBox="([^"]+)"', svg)
    inner = svg[svg.index(">", svg.index("<svg")) + 1 :]
    inner = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{key}-", inner)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img"'
        f' viewBox="{view_box.group(1) if view_box else ""}" aria-labelledby="{key}-title {key}-desc">'
        f'<title id="{key}-title">{escape(title)}</title>'
        f'<desc id="{key}-desc">{escape(description)}</desc>{inner}'
    )


def blank_axes(figure: "Figure") -> "Axes":
    """Axes over the whole figure from 0 to 100 both ways, with nothing drawn."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 100), ylim=(0, 100))
    axes.set_axis_off()
    return axes


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near `wanted`, in the same order, at least `gap` apart where `low` to `high` has room."""
    if not wanted:
        return []
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    placed = [0.0] * len(wanted)
    floor = low
    for i in order:
        placed[i] = floor = max(wanted[i], floor)
        floor += gap
    ceiling = high
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed


def labels_of(ids: Sequence[str]) -> tuple[list[str], str]:
    """Short labels for device ids, and the beginning they share (empty where they keep it)."""
    shared = ids[0][: ids[0].rfind("-") + 1] if len(ids) > 12 else ""
    if not shared or not all(name.startswith(shared) and name != shared for name in ids):
        shared = ""
    return [shorten(name.removeprefix(shared)) for name in ids], shared


def shorten(name: str, most: int = 18) -> str:
    """A name of at most `most` characters, cut in its middle."""
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"
