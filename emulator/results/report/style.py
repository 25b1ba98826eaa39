"""Define the style of figures: colours and fonts. Save matplotlib figures, or convert them to inline SVG."""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#1f2933"
MUTED = "#5b6875"
LINE = "#b8c2cc"
FAINT = "#eef1f4"
# The page's light colours, --c0 to --c7: Okabe and Ito's palette, darkened to a contrast of 3:1 on white
COLOURS = ("#0072b2", "#b34700", "#008f68", "#cc79a7", "#c08400", "#1d9dcc", "#6f4e37", "#6b7680")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # show a `$` in a device's name as it is
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
    "svg.fonttype": "none",  # keep text as text, which can be searched, selected and read aloud
    "svg.hashsalt": "fedstrata",
    "pdf.fonttype": 42,  # TrueType, which publishers accept
}


@contextmanager
def drawing() -> Iterator[None]:
    """Use Fedstrata's style for figures that are made and saved in the block. The result is the same on all
    machines.
    """
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


CHARACTER_INCHES = 0.075  # width of a wide character in a legend


# By format of a figure: metadata that are left out, because matplotlib would write its name and the date
METADATA = {
    "png": ("Software",),
    "svg": ("Date", "Creator", "Format", "Type"),
    "pdf": ("CreationDate", "Creator", "Producer"),
}


def save(figure: "Figure", folder: Path, name: str, kinds: Sequence[str] = ("png", "svg")) -> None:
    """Write a figure to a file per kind, such as `name`.png. The files contain no date and no version, so that the same
    runs give the same files.
    """
    for kind in kinds:
        figure.savefig(folder / f"{name}.{kind}", format=kind, dpi=160, metadata=dict.fromkeys(METADATA[kind]))


def inline_svg(key: str, title: str, size: tuple[float, float], draw: Callable[["Figure"], str]) -> str:
    """Return an `<svg>` element for a page. `draw` draws the figure, and returns a description of the figure for
    readers who cannot see it.

    `key` must be unique on the page. All ids in the element begin with `key`. `size` is in inches.
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
            metadata=dict.fromkeys(METADATA["svg"]),
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


def entry_width(labels: Sequence[str]) -> float:
    """Return the width in inches that a legend needs for its longest label, with marker and spaces."""
    return 0.55 + CHARACTER_INCHES * max(map(len, labels), default=0)


def legend_columns(labels: Sequence[str], width: float, most: int) -> int:
    """Return how many columns of a legend with these labels fit into a figure of this width in inches."""
    return max(1, min(most, len(labels), int((width - 0.2) / entry_width(labels))))


def shorten(name: str, most: int = 18) -> str:
    """Return a name with at most `most` characters. From a longer name, characters in the middle are removed."""
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"
