"""Log the curves of a run to MLflow, with its own library."""

import os
from collections.abc import Sequence, Set
from typing import Any
from urllib.parse import urlsplit

from emulator.shipped.extras import needed
from emulator.tracking.tracker import Key, Point, TrackedRun

ALLOWED = "MLFLOW_ALLOW_FILE_STORE"  # the variable with which MLflow 3 uses a folder
LONGEST_PARAMETER = 500  # characters that every version of MLflow accepts
PARAMETERS_A_CALL = 100
# A server that is away must not hold the run's end up: without the first two variables MLflow tries for minutes.
# Without the third, MLflow prints the run's address between the lines of `--json`.
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def is_folder(tracking_uri: str) -> bool:
    """Return whether a tracking URI of MLflow is a folder."""
    return urlsplit(tracking_uri).scheme in ("", "file") and tracking_uri not in ("", "databricks")


class MlflowTracker:
    """Log to one run of MLflow. If a run continues, its MLflow run is found by the tag `fedstrata.folder`."""

    name = "mlflow"

    def __init__(self, tracking_uri: str = "") -> None:
        """Set the tracking URI. By default it is the URI for which MLflow is configured. Raises MissingPackageError if
        MLflow is not installed.
        """
        for variable, value in SETTINGS.items():
            os.environ.setdefault(variable, value)
        if is_folder(tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")):
            os.environ.setdefault(ALLOWED, "true")
        self._mlflow = needed("mlflow")
        self._uri = tracking_uri or None
        self._client: Any = None
        self._run_id = ""

    def begin(self, run: TrackedRun) -> None:
        client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        experiment = self._experiment(client, run.name)
        tags = {"fedstrata.run_id": run.run_id, "fedstrata.folder": str(run.folder.resolve())}
        where = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        found = client.search_runs([experiment], where, max_results=1)
        if found:
            self._run_id = found[0].info.run_id
            client.update_run(self._run_id, status="RUNNING")
        else:
            self._run_id = client.create_run(experiment, run_name=run.label, tags=tags).info.run_id
        parameter = self._mlflow.entities.Param
        settings = [parameter(key, value[:LONGEST_PARAMETER]) for key, value in run.settings.items()]
        for start in range(0, len(settings), PARAMETERS_A_CALL):
            client.log_batch(self._run_id, params=settings[start : start + PARAMETERS_A_CALL])
        self._client = client

    def _experiment(self, client: Any, name: str) -> str:
        """Return the id of MLflow's experiment with this name. If the experiment is missing, make it."""
        if known := client.get_experiment_by_name(name):
            return str(known.experiment_id)
        try:
            return str(client.create_experiment(name))
        except self._mlflow.exceptions.MlflowException:
            if known := client.get_experiment_by_name(name):  # another run has just made it
                return str(known.experiment_id)
            raise

    def write(self, points: Sequence[Point]) -> None:
        metric = self._mlflow.entities.Metric
        metrics = [metric(f"{each.cluster}/{each.name}", each.value, each.time_ms, each.step) for each in points]
        self._client.log_batch(self._run_id, metrics=metrics)

    def present(self, points: Sequence[Point]) -> Set[Key]:
        return {
            (cluster, name, each.step)
            for cluster, name in {(point.cluster, point.name) for point in points}
            for each in self._client.get_metric_history(self._run_id, f"{cluster}/{name}")
        } & {point.key for point in points}

    def end(self, *, is_completed: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if is_completed else "FAILED")
