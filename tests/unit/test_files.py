"""Folders of state: who holds one, and what is said when nobody can."""

from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import pytest

from fedstrata.errors import StateError
from fedstrata.store import claim, files


class Held(list[TextIO]):
    """Locks that are given up at the end of a test, where a process would keep them for as long as it lives."""

    def __init__(self, until: ExitStack) -> None:
        super().__init__()
        self._until = until

    def append(self, lock: TextIO) -> None:
        self._until.enter_context(lock)


def test_a_folder_that_another_holds_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CLAIM_TRIES", 1)
    monkeypatch.setattr(files, "CLAIM_PAUSE_S", 0.0)
    with ExitStack() as held:
        monkeypatch.setattr(files, "_CLAIMS", Held(held))
        claim(tmp_path)
        with pytest.raises(StateError, match="is in use by another process"):
            claim(tmp_path)


def test_a_folder_that_cannot_be_written_to_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()  # what no user's rights can write
    with pytest.raises(StateError, match=r"cannot write .*\.lock: Is a directory; choose another folder"):
        claim(tmp_path)
