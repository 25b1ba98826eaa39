"""The versions of an environment with other frameworks, as its Python prints them."""

from pathlib import Path

import pytest

from benchmarks.suite.machine import peer_versions


@pytest.mark.parametrize(
    ("printed", "versions"),
    [
        ("Python 3.11.2\\npip 24.0", {}),
        ("Python 3.11.2\\npip 24.0\\nflwr 1.20.0", {"Python": "3.11.2", "flwr": "1.20.0"}),
    ],
)
def test_an_environment_without_a_peer_has_no_versions(printed: str, versions: dict[str, str], tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '{printed}\\n'\n")
    python.chmod(0o755)
    assert peer_versions(python, tmp_path) == versions
