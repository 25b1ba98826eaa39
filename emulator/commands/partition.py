"""Define the command `partition`, which shows how an experiment divides its data."""

from pathlib import Path
from typing import Annotated

import typer

from emulator.commands.options import Changes, with_groups
from emulator.commands.package import EXPERIMENT


@with_groups
def partition(
    *,
    experiment: Annotated[Path, EXPERIMENT],
    changes: Changes,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write partition.csv, partition.png and partition.svg to this new folder."),
    ] = None,
) -> None:
    """Show how an experiment divides its data: labels and sizes of devices."""
    from emulator.console.console_tables import make_console
    from emulator.estimates.partition_picture import show_partition

    show_partition(changes.load(experiment), make_console(), out)
