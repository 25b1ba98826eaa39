"""Export a record for TensorBoard and MLflow, with their own libraries."""

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from emulator.interface import Record, load
from emulator.results.output import check_unused
from emulator.results.read_record import load_record
from emulator.results.weights import check_models
from emulator.shipped.extras import needed
from emulator.tracking.mlflow_tracker import ALLOWED, LONGEST_PARAMETER, PARAMETERS_A_CALL, is_folder
from emulator.tracking.tracker import COUNTED, flattened
from fedstrata.errors import OutputError

# In addition to the metrics of the task:
MEASURED = ("loss",)  # columns of rounds.csv with measurements of models
RESULT = ("adjusted_rand_index", "seconds", "bytes")  # columns of the summary that become one number
METRICS_A_CALL = 1000  # limit of MLflow per call
T = TypeVar("T")
Point = tuple[str, str, int, float]  # cluster or LPS, column, LPS round, value


def export(folder: Path, target: Literal["tensorboard", "mlflow"], place: str | None) -> str:
    """Export the record in a folder to TensorBoard or MLflow. Return a line that says where the export is.

    Args:
        folder: the folder of a run.
        target: the tool for which the record is exported.
        place: for TensorBoard, the log folder. By default this is `tensorboard` in the run's folder. For MLflow, the
            tracking URI. By default this is the URI for which MLflow is configured.

    Raises:
        MissingPackageError: the target's library is not installed.
        DataError: the folder has no record, or a damaged model.
        OutputError: the log folder is not empty, or MLflow refuses the export.
    """
    record = load(folder)
    if target == "tensorboard":
        logs = Path(place) if place else folder / "tensorboard"
        try:
            to_tensorboard(record, logs)
        except OSError as error:
            raise OutputError(f"cannot write to {logs}: {error.strerror}; choose another folder with --out") from None
        return f"exported to {logs}; tensorboard --logdir {logs}"
    check_models(load_record(folder))
    said = f"exported to MLflow as run {to_mlflow(record, place)} of experiment {record.name}"
    if place is None or not is_folder(place):
        return said
    return f"{said}; look at it with {ALLOWED}=true mlflow ui --backend-store-uri {place}"


def points(record: Record) -> Iterator[Point]:
    """Yield each value of an LPS round that becomes a point of a curve. The values are from the columns of rounds.csv
    with the task's metrics, and from the columns `MEASURED` and `COUNTED`. Metrics and `MEASURED` are taken only from
    the last LPS round of each global round. Values that are not finite are left out.
    """
    rounds, each = record.rounds, record.experiment["training"]["lps_rounds_per_global_round"]
    for column in (*record.metrics, f"cohort_{record.headline.name}", *MEASURED, *COUNTED):
        for cluster, step, value in zip(rounds["lps_id"], rounds["lps_round"], rounds[column], strict=True):
            if math.isfinite(value) and (column in COUNTED or step % each == 0):
                yield str(cluster), column, int(step), float(value)


def to_tensorboard(record: Record, logs: Path) -> None:
    """Write TensorBoard's event files. Each cluster or, if clusters span LPSs, each LPS has a folder with its curves
    over LPS rounds. The folder `run` has all other values.
    """
    writer = needed("torch.utils.tensorboard").SummaryWriter
    check_unused(logs)
    with writer(logs / "run") as events:
        events.add_text("experiment", "".join(f"    {line}\n" for line in record.experiment_yaml.splitlines()))
        for name, value in _result(record).items():
            events.add_scalar(f"result/{name}", value)
        if record.relevance is not None:
            events.add_image("relevance", record.relevance.values[None])  # one channel, from 0 to 1
    for cluster in dict.fromkeys(map(str, record.rounds["lps_id"])):
        with writer(logs / re.sub(r"[^A-Za-z0-9_-]", "_", cluster)) as events:
            for _, column, step, value in (point for point in points(record) if point[0] == cluster):
                events.add_scalar(column, value, step)


def to_mlflow(record: Record, tracking_uri: str | None) -> str:
    """Log the record as a run of MLflow: the experiment's keys as parameters, the curves, and the files. Return
    MLflow's run id.
    """
    mlflow = needed("mlflow")
    try:
        with _folder_allowed(tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")):
            client = mlflow.MlflowClient(tracking_uri=tracking_uri)
            return _logged(mlflow.entities, client, record)
    except mlflow.exceptions.MlflowException as error:
        raise OutputError(f"MLflow: {' '.join(str(error).split())}"[:500]) from None


@contextmanager
def _folder_allowed(tracking_uri: str) -> Iterator[None]:
    """Allow MLflow to use a folder during the block. MLflow 3 otherwise refuses folders, and reads the environment. A
    variable that the user has set stays.
    """
    if not is_folder(tracking_uri) or ALLOWED in os.environ:
        yield
        return
    os.environ[ALLOWED] = "true"
    try:
        yield
    finally:
        del os.environ[ALLOWED]


def _logged(entities: Any, client: Any, record: Record) -> str:
    known = client.get_experiment_by_name(record.name)
    experiment = known.experiment_id if known else client.create_experiment(record.name)
    ended_ms = int((record.folder / "summary.json").stat().st_mtime * 1000)
    took_ms = int(1000 * _result(record).get("seconds", 0))
    tags = {"fedstrata.run_id": record.run_id, "fedstrata.folder": str(record.folder.resolve())}
    run = client.create_run(experiment, start_time=ended_ms - took_ms, run_name=record.run_id, tags=tags)
    run_id, status = str(run.info.run_id), "KILLED"  # of an incomplete export
    try:
        _log_content(entities, client, run_id, record, ended_ms)
        status = "FINISHED" if record.status == "completed" else "FAILED"
    finally:
        client.set_terminated(run_id, status, end_time=ended_ms)
    return run_id


def _log_content(entities: Any, client: Any, run_id: str, record: Record, ended_ms: int) -> None:
    """Log the parameters, the curves and the files of a record to a run of MLflow."""
    for parameters in _batches(list(flattened(record.experiment)), PARAMETERS_A_CALL):
        client.log_batch(run_id, params=[entities.Param(key, value[:LONGEST_PARAMETER]) for key, value in parameters])
    numbers = [*((name, value, 0) for name, value in _result(record).items())]
    numbers += [(f"{cluster}/{column}", value, step) for cluster, column, step, value in points(record)]
    for metrics in _batches(numbers, METRICS_A_CALL):
        client.log_batch(
            run_id, metrics=[entities.Metric(name, value, ended_ms, step) for name, value, step in metrics]
        )
    for path in _files(record.folder):
        client.log_artifact(run_id, str(path), None if path.parent == record.folder else path.parent.name)


def _result(record: Record) -> dict[str, float]:
    row = {name: float(record.summary[name][0]) for name in (*record.metrics, *RESULT)}
    return {name: value for name, value in row.items() if math.isfinite(value)}


def _batches(items: list[T], size: int) -> Iterator[list[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _files(folder: Path) -> list[Path]:
    """Return the files of the record in a run's folder. Logs and state are not part of the record."""
    names = ("experiment.yaml", "summary.json", "*.csv", "report.html", "models/*.safetensors")
    return [path for name in names for path in sorted(folder.glob(name))]
