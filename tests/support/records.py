"""Reading and comparing run records."""

import csv
import json
from pathlib import Path
from typing import Any


def summary_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return document


def rows_of(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of a table of a record, such as rounds.csv."""
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def assert_same_result(one: Path, other: Path) -> None:
    """The same clusters, relevance, models and models of devices' own, to the bit."""
    first, second = summary_of(one), summary_of(other)
    assert first["clusters"] == second["clusters"]
    for key in ("run_id", "homes", "lost_state", "personal_sha256", "model_sha256"):
        assert first[key] == second[key], key
    relevance = [path.read_bytes() for folder in (one, other) for path in folder.glob("relevance.csv")]
    assert relevance[:1] == relevance[1:]  # there in both records or in none
    for name in first["model_sha256"]:
        model = f"models/{name}.safetensors"
        assert (one / model).read_bytes() == (other / model).read_bytes()
