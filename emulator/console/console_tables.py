"""Draw tables on the console."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from emulator.console.units import human_bytes
from fedstrata.record.summary import LinkBytes

LEAST_COLUMNS, USUAL_COLUMNS = 20, 80  # a terminal that states fewer columns does not know its width
CLUSTERS_SHOWN = 20  # most clusters in a table


def make_console(**options: Any) -> Console:
    """Return a console that highlights nothing. `options` are options of `rich.console.Console`. If a terminal states
    an impossibly small width, such as 0, the usual width is used.
    """
    console = Console(highlight=False, **options)
    if console.width < LEAST_COLUMNS:
        console.width = USUAL_COLUMNS
    return console


def plain_table(*texts: str, numbers: Iterable[str]) -> Table:
    """Return an empty table without lines. Its columns with texts come first. Columns with numbers are aligned to the
    right.
    """
    table = Table(*texts, box=None, header_style="dim", pad_edge=False)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def traffic_table(traffic: Mapping[str, LinkBytes]) -> Table:
    """Return a table of bytes by link and direction."""
    table = plain_table("link", numbers=["up", "down"])
    for link, counted in traffic.items():
        table.add_row(link, human_bytes(counted.up), human_bytes(counted.down))
    return table
