"""Run records on disk for tests: five devices of two tasks, two clusters, two rounds; numbers to redo by hand."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from fedstrata.record.rounds import RoundsTable
from fedstrata.tasks import CLASSIFICATION
from fedstrata.tensors import values_digest

TABLE = RoundsTable(CLASSIFICATION.metrics)

ROUNDS = (
    (1, 1, "lps-0", 3, 300, 1.5, "", 0.5, 300, 330),
    (1, 1, "lps-1", 2, 100, 1.25, 0.5, 0.25, 200, 220),
    (2, 2, "lps-0", 3, 300, 0.75, 0.9, 0.5, 300, 330),
    (2, 2, "lps-1", 2, 100, 0.5, 0.8, 0.25, 200, 220),
)
IDS = ("device-000", "device-001", "device-002", "device-003", "device-004")
SUMMARY: Mapping[str, Any] = {
    "run_id": "two-tasks-0123456789ab",
    "name": "two-tasks",
    "experiment_sha256": "ab" * 32,
    "seed": 0,
    "method": "one_shot",
    "status": "completed",
    "reason": None,
    "devices": 5,
    "clusters": {"lps-0": ["device-000", "device-001", "device-003"], "lps-1": ["device-002", "device-004"]},
    "clusters_rule": "2, as method.clusters says",
    "replanned": [],
    "adjusted_rand_index": 1.0,
    "rounds": 2,
    "accuracy": {"lps-0": 0.9, "lps-1": 0.8, "mean": 0.86},
    "received_accuracy": None,
    "device_accuracy": {},
    "newcomers": [],
    "task_accuracy": {"clothes": 0.9, "bags": 0.8},
    "wall_seconds": {"enrol": 0.5, "relevance": 1.0, "group": 0.25, "train": 60.25, "total": 62.0},
    "virtual": None,
    "real": None,
    "bytes": {
        "device-gps": {"up": 1500, "down": 4500},
        "device-lps": {"up": 1000, "down": 1100},
        "lps-gps": {"up": 400, "down": 600},
    },
    "bytes_by_kind": {},
    "adoptions": [],
    "kernels": {},
    "homes": None,
    "moves": [],
    "lost_state": [],
    "personal_sha256": {},
    "model_sha256": {"lps-0": "12" * 32, "lps-1": "34" * 32},
    "excluded": [],
    "device_tasks": {
        "device-000": "clothes", "device-001": "clothes", "device-002": "bags", "device-003": "clothes",
        "device-004": "bags",
    },
}  # fmt: skip


def relevance_rows() -> list[list[object]]:
    """0.9 within a cluster, 0.3 between clusters, 1 on the diagonal."""
    first = set(SUMMARY["clusters"]["lps-0"])
    return [
        ["", *IDS],
        *([a, *(1.0 if a == b else 0.9 if (a in first) == (b in first) else 0.3 for b in IDS)] for a in IDS),
    ]


def write_record(
    folder: Path,
    *,
    name: str = "two-tasks",
    settings: Mapping[str, Any] | None = None,
    rounds: Sequence[Sequence[object]] = ROUNDS,
    relevance: Sequence[Sequence[object]] | None = None,
    **changes: Any,
) -> Path:
    """Write a record into `folder`, with `changes` to its summary and `settings` besides name, seed and method.

    Rows of `rounds` may leave out their last cells.
    """
    folder.mkdir(parents=True)
    summary = {**SUMMARY, "name": name, **changes}
    experiment = {"name": name, "seed": summary["seed"], "method": {"name": summary["method"]}, **(settings or {})}
    experiment["training"] = {"lps_rounds_per_global_round": 1, **experiment.get("training", {})}
    (folder / "experiment.yaml").write_text(json.dumps(experiment), encoding="utf-8")  # JSON is YAML
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    write_csv(
        folder / "rounds.csv", [TABLE.columns, *([*row, *[""] * (len(TABLE.columns) - len(row))] for row in rounds)]
    )
    write_csv(folder / "relevance.csv", relevance_rows() if relevance is None else relevance)
    return folder


def write_models(folder: Path, models: Mapping[str, Mapping[str, NDArray[np.float32]]]) -> None:
    """Write models into a record, one per cluster, and their digests into its summary."""
    (folder / "models").mkdir()
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    for name, weights in models.items():
        save_file(dict(weights), folder / "models" / f"{name}.safetensors")
        arrays = ((tensor, "float32", values.shape, [values.tobytes()]) for tensor, values in weights.items())
        summary["model_sha256"][name] = values_digest(arrays)
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


def write_csv(path: Path, rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
