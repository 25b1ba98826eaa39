"""The command that hands a record to another tool: export."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished run's folder.")],
    to: Annotated[Literal["tensorboard", "mlflow"], typer.Option(help="Whose library writes it.")],
    place: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="PLACE",
            help="TensorBoard: a new log folder. MLflow: a tracking URI.",
            show_default="DIR/tensorboard, or what MLflow is set to",
        ),
    ] = None,
) -> None:
    """Export a finished run's record for TensorBoard or MLflow."""
    from emulator.export import export as export_record

    print(export_record(folder, to, place))
