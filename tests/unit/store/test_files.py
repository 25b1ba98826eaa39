"""Folders of state: who holds one, and what is said when nobody can."""

from pathlib import Path
from typing import TextIO

import pytest

from fedstrata.errors import StateError
from fedstrata.process.private_files import make_private
from fedstrata.store import claim, whole_files, write_aside
from gps.journal.journal import Journal


def test_a_folder_that_another_holds_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_files, "CLAIM_TRIES", 1)
    monkeypatch.setattr(whole_files, "CLAIM_PAUSE_S", 0.0)
    locks: list[TextIO] = []
    monkeypatch.setattr(whole_files, "_CLAIMS", locks)
    claim(tmp_path)
    with pytest.raises(StateError, match="is in use by another process"):
        claim(tmp_path)
    for lock in locks:
        lock.close()


def test_a_folder_that_cannot_be_written_to_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()  # what no user's rights can write
    with pytest.raises(StateError, match=r"cannot write .*\.lock: Is a directory; choose another folder"):
        claim(tmp_path)


def rights(path: Path) -> str:
    return oct(path.stat().st_mode & 0o777)


def test_files_of_state_and_their_folders_are_their_owners_alone(tmp_path: Path) -> None:
    state = tmp_path / "state" / "lps-0"
    (tmp_path / ".model.pb.aside").write_text("of a writer that was killed, with the rights of then")
    for path in (tmp_path / "model.pb", state / "round.pb"):
        with write_aside(path) as file:
            file.write(b"data")
        assert rights(path) == "0o600"
    assert [rights(folder) for folder in (tmp_path / "state", state)] == ["0o700", "0o700"]
    make_private(tmp_path / "a" / "b")
    assert [rights(folder) for folder in (tmp_path / "a", tmp_path / "a" / "b")] == ["0o700", "0o700"]
    claim(state)
    assert rights(state / ".lock") == "0o600"


def test_the_journal_and_its_logs_are_their_owners_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite", run_id="run-1", experiment="name: x")
    journal.rounds.close(0)
    assert {path.name: rights(path) for path in tmp_path.iterdir()} == {
        f"journal.sqlite{end}": "0o600" for end in ("", "-wal", "-shm")
    }
    journal.close()
