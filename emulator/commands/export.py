"""Define the command `export`, which writes a record or one of its models for other programs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from emulator.results.trained import Trained


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    to: Annotated[
        Literal["tensorboard", "mlflow", "safetensors", "onnx"],
        typer.Option(help="Write the record for this tool, or one model in this format."),
    ],
    place: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="PLACE",
            help="Write to a new log folder (TensorBoard), a tracking URI (MLflow) or a new file (a model).",
            show_default="DIR/tensorboard, or what MLflow is set to",
        ),
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="Write the model of this cluster.")] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="Write the model that this device uses.")] = None,
) -> None:
    """Export a finished run's record for TensorBoard or MLflow, or one model as safetensors or ONNX. For a model,
    own code that the record names is imported.
    """
    match to:
        case "tensorboard" | "mlflow":
            if cluster is not None or device is not None:
                raise typer.BadParameter(f"--to {to} exports the whole record; leave out --cluster and --device")
            from emulator.export import export as export_record

            print(export_record(folder, to, place))
        case "safetensors" | "onnx":
            if place is None:
                raise typer.BadParameter(f"--to {to} writes one file; give --out FILE")
            from emulator.results.model_files import write_model

            print(write_model(_trained(folder, cluster, device), to, Path(place)))


def _trained(folder: Path, cluster: str | None, device: str | None) -> "Trained":
    """Return the model of the cluster or the device that the options name."""
    from emulator.results.read_record import load_record
    from emulator.results.trained import TrainedModels

    if cluster is not None and device is None:
        return TrainedModels(load_record(folder)).of_cluster(cluster)
    if device is not None and cluster is None:
        return TrainedModels(load_record(folder)).of_device(device)
    raise typer.BadParameter("--to safetensors and onnx write one model; give either --cluster NAME or --device NAME")
