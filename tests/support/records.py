"""Comparing run records."""

import json
from pathlib import Path
from typing import Any


def summary(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return document


def assert_same_result(one: Path, other: Path) -> None:
    """The same clusters, relevance, models and models of devices' own, to the bit."""
    first, second = summary(one), summary(other)
    assert first["clusters"] == second["clusters"]
    for key in ("run_id", "homes", "lost_state", "personal_sha256", "model_sha256"):
        assert first[key] == second[key], key
    relevance = [path.read_bytes() for folder in (one, other) for path in folder.glob("relevance.csv")]
    assert relevance[:1] == relevance[1:]  # there in both records or in none
    for name in first["model_sha256"]:
        model = f"models/{name}.safetensors"
        assert (one / model).read_bytes() == (other / model).read_bytes()
