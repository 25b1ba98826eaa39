"""The command `sweep`, which does many runs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.commands.options import Output, with_groups

if TYPE_CHECKING:
    from rich.console import Console

    from emulator.sweeps.sweep import SweepOutcome


@with_groups
def sweep(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A sweep file, as docs/sweep.md describes it.")],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Write the runs and tables to this folder: a new folder, or this sweep's, to continue the sweep.",
        ),
    ],
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Do so many runs at once.", show_default="one more than cores")
    ] = None,
    output: Output,
) -> None:
    """Run an experiment in many cells, settings and seeds, and make one table; continue a stopped sweep."""
    from rich.console import Console

    from emulator.sweeps.file import load_sweep
    from emulator.sweeps.progress import make_display
    from emulator.sweeps.sweep import SweepRequest
    from emulator.sweeps.sweep import sweep as do_sweep

    console = Console(highlight=False)
    request = SweepRequest(sweep=load_sweep(file), out=out, jobs=jobs)
    outcome = do_sweep(request, make_display(console, is_json=output.is_json, is_quiet=output.is_quiet))
    _tell(outcome, out, console, is_json=output.is_json)
    if outcome.failure is not None:
        raise outcome.failure


def _tell(outcome: "SweepOutcome", out: Path, console: "Console", *, is_json: bool) -> None:
    """Print the result of a sweep."""
    from emulator.console.units import counted, human_seconds
    from emulator.runs.progress import print_json
    from emulator.sweeps import tables

    cost, results = outcome.cost, outcome.results
    if is_json:
        print_json({
            "event": "sweep", "folder": str(out), "runs": len(results.sweep.runs), "completed": len(results.records),
            "done_now": cost.runs, "seconds": round(cost.seconds, 3), "cpu_seconds": round(cost.cpu_seconds, 3),
            "cores": cost.cores,
        })  # fmt: skip
        return
    show = partial(print_table, console, results.of.is_number)
    show("Mean ± sample standard deviation over seeds", tables.means(results))
    for title, given in tables.titled(results):
        show(title, given)
    if cost.ratio is not None:
        busy = f"{cost.ratio:.2f} × their CPU time shared by {counted(cost.cores, 'core')}"
        console.print(f"{counted(cost.runs, 'run')} in {human_seconds(cost.seconds)}, {busy}")
    console.print(f"tables  {out / 'table.csv'}, table.md\npage    {out / 'index.html'}", soft_wrap=True, markup=False)


def print_table(
    console: "Console", is_number: Callable[[str], bool], title: str, given: tuple[list[str], list[list[str]]]
) -> None:
    """Print a table that is never cut."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from fedstrata.process.quoting import printable

    head, rows = given
    table = Table(title=Text(title, style="bold"), box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for name, *column in zip(head, *rows, strict=True):
        if is_number(name):
            table.add_column(name, justify="right", min_width=max(map(len, (name, *column))))
        else:
            table.add_column(name, min_width=12, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table, crop=False)
