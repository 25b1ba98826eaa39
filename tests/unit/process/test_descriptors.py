"""Files that a process may have open: as many as allowed, told when they are too few, waited for when they are out."""

import errno
import os
import resource
from pathlib import Path

import pytest

from fedstrata.errors import ResourceError
from fedstrata.process import descriptors
from fedstrata.process.descriptors import connections_allowed, raise_limit, when_there_is_room
from fedstrata.store import whole_files, write_sealed


class Limits:
    """The limits of a machine that there is not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
        self.now = (soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda which: self.now)
        monkeypatch.setattr(resource, "setrlimit", lambda which, limits: setattr(self, "now", limits))


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [(1024, 4096, 4096), (1024, 1 << 20, 1 << 16), (1 << 17, 1 << 20, 1 << 17), (1024, -1, 1 << 16)],
)
def test_a_process_may_open_what_its_hard_limit_allows(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int
) -> None:
    limits = Limits(monkeypatch, soft, hard)
    assert raise_limit() == min(raised, 1 << 16)
    assert limits.now == (raised, hard)


def test_too_few_files_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Limits(monkeypatch, 24, 24)
    with pytest.raises(
        ResourceError, match="a process can open only 24 files here; at least 64 are needed; raise ulimit"
    ):
        raise_limit()


@pytest.mark.parametrize(("files_allowed", "connections"), [(64, 32), (1024, 768), (65536, 16384), (-1, 16384)])
def test_connections_leave_files_for_a_server_s_own(
    monkeypatch: pytest.MonkeyPatch, files_allowed: int, connections: int
) -> None:
    Limits(monkeypatch, files_allowed, files_allowed)
    assert connections_allowed() == connections


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "OPEN_PAUSE_S", 0.0)


@pytest.mark.usefixtures("_impatient")
def test_a_state_file_is_written_once_there_is_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, really_open = [OSError(errno.EMFILE, "Too many open files")] * 3, os.open

    def open_(path: str, flags: int, mode: int = 0o777) -> int:
        if full:
            raise full.pop()
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", open_)
    write_sealed(tmp_path / "state", b"what is to be kept")
    monkeypatch.undo()
    assert not full
    assert whole_files.read_sealed(tmp_path / "state") == b"what is to be kept"


@pytest.mark.usefixtures("_impatient")
def test_no_other_error_is_waited_for_and_this_one_not_for_ever() -> None:
    tries: list[int] = []

    def fail(number: int) -> None:
        tries.append(number)
        raise OSError(number, "no")

    for number, expected in ((errno.ENOSPC, 1), (errno.EMFILE, descriptors.OPEN_TRIES + 1)):
        tries.clear()
        with pytest.raises(OSError, match="no"):
            when_there_is_room(lambda number=number: fail(number))  # type: ignore[misc]
        assert len(tries) == expected
