"""Define the commands that help to prepare a run: examples, schema and data."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

WIDE = 1000  # columns if the output is a pipe, so that no line is cut


def _complete_experiment(incomplete: str) -> list[str]:
    from emulator.shipped.experiments import complete_experiment

    return list(complete_experiment(incomplete))


def _complete_example(incomplete: str) -> list[str]:
    from emulator.shipped.experiments import examples

    return [name for name in examples() if name.startswith(incomplete)]


EXPERIMENT = typer.Argument(
    metavar="EXPERIMENT", autocompletion=_complete_experiment, help="An experiment file, or the name of an example."
)


def examples(
    show: Annotated[
        str | None,
        typer.Option(metavar="NAME", autocompletion=_complete_example, help="Print this example's file."),
    ] = None,
) -> None:
    """List the example experiments. Other commands take them by their names."""
    from rich.table import Table
    from rich.text import Text

    from emulator.console.console_tables import make_console
    from emulator.shipped.experiments import examples as all_examples
    from emulator.shipped.experiments import find_example

    if show is not None:
        print(find_example(show).text, end="")
        return
    found = all_examples()
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=max(map(len, found), default=0))
    table.add_column(no_wrap=True, overflow="ellipsis")
    for name, example in found.items():
        table.add_row(Text(name, style="bold"), Text(example.summary))
    make_console(width=None if sys.stdout.isatty() else WIDE).print(table)


def schema(
    of: Annotated[
        Literal["experiment", "status"],
        typer.Argument(help="The thing to describe: the experiment file, or a line of status --json."),
    ] = "experiment",
) -> None:
    """Print the JSON Schema of the experiment file, which editors use to check YAML. Or print the JSON Schema of a
    status.
    """
    from emulator.runs.status_schema import status_schema
    from fedstrata.experiment_file import experiment_schema

    found = status_schema() if of == "status" else experiment_schema()
    print(json.dumps(found, indent=2))


def data(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The name of the data set to fetch.")] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Fetch the data set to this folder, which data.folder names.")
    ] = None,
) -> None:
    """Fetch a published data set, and check its content. Without a name, list which data sets are on this machine."""
    from emulator.shipped.data import fetch, listing

    print("\n".join(listing()) if name is None else fetch(name, folder))
