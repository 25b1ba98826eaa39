"""Comparing run records."""

import json
from pathlib import Path
from typing import Any


def summary(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return document


def assert_same_result(one: Path, other: Path) -> None:
    """The same clusters, relevance and models, to the bit."""
    first, second = summary(one), summary(other)
    assert first["clusters"] == second["clusters"]
    assert first["model_sha256"] == second["model_sha256"]
    assert (one / "relevance.csv").read_bytes() == (other / "relevance.csv").read_bytes()
    for name in first["clusters"]:
        model = f"models/{name}.safetensors"
        assert (one / model).read_bytes() == (other / model).read_bytes()
