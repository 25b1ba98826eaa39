"""Folders of state: who holds one, and what is said when nobody can."""

from pathlib import Path
from typing import TextIO

import pytest

from fedstrata.errors import StateError
from fedstrata.store import claim, files


def test_a_folder_that_another_holds_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CLAIM_TRIES", 1)
    monkeypatch.setattr(files, "CLAIM_PAUSE_S", 0.0)
    locks: list[TextIO] = []
    monkeypatch.setattr(files, "_CLAIMS", locks)
    claim(tmp_path)
    with pytest.raises(StateError, match="is in use by another process"):
        claim(tmp_path)
    for lock in locks:
        lock.close()


def test_a_folder_that_cannot_be_written_to_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()  # what no user's rights can write
    with pytest.raises(StateError, match=r"cannot write .*\.lock: Is a directory; choose another folder"):
        claim(tmp_path)
