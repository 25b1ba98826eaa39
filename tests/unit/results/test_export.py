"""A record as TensorBoard and MLflow read it back."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from emulator.commands import main as cli
from emulator.export import flattened, points, to_tensorboard
from emulator.interface import load
from emulator.shipped import extras
from tests.support.record_files import IDS, ROUNDS, SUMMARY, write_models, write_record

SETTINGS = {"partition": {"kind": "tasks", "tasks": [{"name": "clothes", "labels": [0, 1]}, {"name": "bags"}]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_record(tmp_path / "run", settings=SETTINGS)


def test_what_was_not_measured_is_no_point(folder: Path) -> None:
    accuracy = [point for point in points(load(folder)) if point[1] == "accuracy"]
    assert accuracy == [("lps-1", "accuracy", 1, 0.5), ("lps-0", "accuracy", 2, 0.9), ("lps-1", "accuracy", 2, 0.8)]


def test_keys_are_those_that_set_takes() -> None:
    assert dict(flattened(SETTINGS)) == {
        "partition.kind": "tasks",
        "partition.tasks.0.name": "clothes",
        "partition.tasks.0.labels": "[0, 1]",
        "partition.tasks.1.name": "bags",
    }


def test_tensorboard_reads_the_curves_the_result_and_the_matrix(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = tmp_path / "logs"
    assert cli.execute(["export", str(folder), "--to", "tensorboard", "--out", str(logs)]) == 0
    assert capsys.readouterr().out == f"exported to {logs}; tensorboard --logdir {logs}\n"
    assert sorted(path.name for path in logs.iterdir()) == ["lps-0", "lps-1", "run"]
    cluster, run = (EventAccumulator(str(logs / name)).Reload() for name in ("lps-1", "run"))
    assert [(event.step, event.value) for event in cluster.Scalars("loss")] == [(1, 1.25), (2, 0.5)]
    assert [event.value for event in cluster.Scalars("bytes_down")] == [220, 220]
    assert run.Scalars("result/bytes")[0].value == 9100
    assert (run.Images("relevance")[0].width, run.Images("relevance")[0].height) == (5, 5)
    assert b"two-tasks" in run.Tensors("experiment/text_summary")[0].tensor_proto.string_val[0]
    assert cli.execute(["export", str(folder), "--to", "tensorboard", "--out", str(logs)]) == 5


def test_a_log_folder_that_cannot_be_made_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    logs = tmp_path / "file" / "logs"
    logs.parent.touch()
    assert cli.execute(["export", str(folder), "--to", "tensorboard", "--out", str(logs)]) == 5
    said = f"error: cannot write to {logs}: Not a directory; choose another folder with --out\n"
    assert capsys.readouterr().err == said


def test_a_clusters_name_is_no_path_out_of_the_log_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    clusters, rounds = {"../../out": ["device-000"]}, [(1, 1, "../../out", *ROUNDS[0][3:])]
    folder = write_record(tmp_path / "run", clusters=clusters, accuracy={}, rounds=rounds, relevance=())
    assert cli.execute(["export", str(folder), "--to", "tensorboard"]) == 0
    assert sorted(path.name for path in (folder / "tensorboard").iterdir()) == ["______out", "run"]
    assert not (tmp_path / "out").exists()


def test_tensorboard_has_the_curves_of_each_lps_if_clusters_span_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    homes, clusters = dict(SUMMARY["clusters"]), {"cluster-0": list(IDS)}
    spanning = write_record(tmp_path / "spanning", clusters=clusters, homes=homes, accuracy={}, relevance=())
    to_tensorboard(load(spanning), tmp_path / "logs")
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["lps-0", "lps-1", "run"]


def test_mlflow_reads_parameters_curves_and_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)  # without it, MLflow 3 refuses a folder
    place = (tmp_path / "store").as_uri()
    write_models(folder, {"lps-0": {"w": np.float32([1])}})
    for _ in range(2):
        assert cli.execute(["export", str(folder), "--to", "mlflow", "--out", place]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {place}" in said
    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # to read the folder
    client = mlflow.MlflowClient(tracking_uri=place)
    experiment = client.get_experiment_by_name("two-tasks")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 2
    run = runs[0]
    assert run.info.run_name == "two-tasks-0123456789ab"
    assert (run.info.status, run.info.end_time - run.info.start_time) == ("FINISHED", 62_000)
    assert run.data.params["partition.tasks.0.labels"] == "[0, 1]"
    assert (run.data.metrics["accuracy"], run.data.metrics["lps-0/loss"]) == (0.86, 0.75)
    history = client.get_metric_history(run.info.run_id, "lps-1/accuracy")
    assert [(metric.step, metric.value) for metric in history] == [(1, 0.5), (2, 0.8)]
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {"experiment.yaml", "summary.json", "rounds.csv", "relevance.csv", "models"}


def test_a_run_that_failed_is_failed_in_mlflow_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    failed = {"status": "failed", "reason": "quorum", "accuracy": {}, "wall_seconds": {}, "rounds": ()}
    folder = write_record(tmp_path / "run", **failed)
    place = (tmp_path / "store").as_uri()
    assert cli.execute(["export", str(folder), "--to", "mlflow", "--out", place]) == 0
    (run,) = mlflow.MlflowClient(tracking_uri=place).search_runs(["0", *_experiments(mlflow, place)])
    assert run.info.status == "FAILED"


def test_a_run_of_mlflow_whose_export_is_refused_is_not_running(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr("emulator.export.flattened", lambda _: [("a name\nof two lines", "1")])
    place = (tmp_path / "store").as_uri()
    assert cli.execute(["export", str(folder), "--to", "mlflow", "--out", place]) == 5
    assert capsys.readouterr().err.startswith("error: MLflow: Invalid value")
    (run,) = mlflow.MlflowClient(tracking_uri=place).search_runs(_experiments(mlflow, place))
    assert run.info.status == "KILLED"


def _experiments(mlflow: Any, place: str) -> list[str]:
    return [found.experiment_id for found in mlflow.MlflowClient(tracking_uri=place).search_experiments()]


def test_what_mlflow_refuses_is_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    assert cli.execute(["export", str(folder), "--to", "mlflow", "--out", "gopher://nowhere"]) == 5
    said = capsys.readouterr().err
    assert said.startswith("error: MLflow: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("target", ["tensorboard", "mlflow"])
def test_without_the_library_the_command_that_installs_it_is_told(
    folder: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {target!r}", name=target)

    monkeypatch.setattr(extras, "importlib", SimpleNamespace(import_module=missing))
    assert cli.execute(["export", str(folder), "--to", target]) == 2
    said = capsys.readouterr().err
    assert f"pip install 'fedstrata[{target}]'" in said
    assert said.count("\n") == 1
