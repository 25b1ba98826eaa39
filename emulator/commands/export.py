"""The command that exports a record for another tool: export."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    to: Annotated[
        Literal["tensorboard", "mlflow"],
        typer.Option(help="Write the record for this tool, with the library of the tool."),
    ],
    place: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="PLACE",
            help="Write to a new log folder (TensorBoard) or a tracking URI (MLflow).",
            show_default="DIR/tensorboard, or what MLflow is set to",
        ),
    ] = None,
) -> None:
    """Export a finished run's record for TensorBoard or MLflow."""
    from emulator.export import export as export_record

    print(export_record(folder, to, place))
