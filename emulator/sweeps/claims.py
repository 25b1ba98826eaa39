"""Claim runs of a sweep, so that several processes can share the sweep's folder.

A claim is a kernel lock on a file next to the run's folder. When the process ends for any reason, the kernel removes
the lock. File systems that several machines share also keep such locks (NFS from version 4 on, CephFS, Lustre). The
file has a line for each failure of the run.
"""

import fcntl
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

from fedstrata.errors import OutputError

SUFFIX = ".claim"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Hold the reason of a run's failure, and the time until the failure. Raises ValueError for an impossible time."""

    reason: str
    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"a run cannot take {self.seconds} s")


class Claim:
    """Hold the lock on a run, so that no other process does the run. Use this object as a context manager: the lock
    ends with the block.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Claim the run of this folder, and return the claim. If another process has the run, return None.

        Raises:
            OutputError: the claim's file cannot be written, or the file system has no locks.
        """
        file = opened(_beside(folder))
        if is_locked(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return cls(file)
        file.close()
        return None

    def note(self, failure: Failure) -> None:
        """Write a failure of the run to the claim's file, where other processes read it.

        Raises:
            OutputError: the file cannot be written.
        """
        try:
            self._file.write(json.dumps(asdict(failure)) + "\n")
            self._file.flush()
        except OSError as error:
            raise OutputError(f"cannot write to {self._file.name}: {error.strerror}; free space") from None

    def finish(self) -> None:
        """Do nothing, because the run's record is already in the folder that all processes share."""

    def release(self) -> None:
        """End the lock."""
        with suppress(OSError):  # `note` has raised this error
            self._file.close()


@contextmanager
def turn_at(path: Path) -> Iterator[None]:
    """Wait until no other process writes a file, and reserve the file for this process during the block. Raises
    OutputError if the file cannot be locked.
    """
    with opened(_beside(path)) as file:
        is_locked(file, fcntl.LOCK_EX)
        yield


def failures(folder: Path) -> list[Failure]:
    """Return the failures of the run in this folder, the earliest first."""
    found: list[Failure] = []
    with suppress(OSError):  # no claim yet
        for line in _beside(folder).read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, TypeError):  # an incomplete line, if the disk was full
                found.append(Failure(**json.loads(line)))
    return found


def claimed(folder: Path) -> list[Path]:
    """Return the folders of all runs in a sweep's folder that any process has claimed. They are sorted."""
    return sorted(found.with_name(found.name[1:].removesuffix(SUFFIX)) for found in folder.glob(f"runs/**/.*{SUFFIX}"))


def opened(path: Path) -> IO[str]:
    """Open a file for reading, and for writing at its end. If the file is missing, it is made.

    Raises:
        OutputError: the file cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write to {path.parent}: {error.strerror}; choose another folder") from None


def is_locked(file: IO[str], kind: int) -> bool:
    """Lock a file, and return whether this was possible. `kind` is the operation of `fcntl.flock`. The lock ends when
    the file is closed.

    Raises:
        OutputError: the file system has no locks.
    """
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        return False
    except OSError as error:
        raise OutputError(f"cannot lock {file.name}: {error.strerror}; choose a file system with locks") from None
    return True


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}{SUFFIX}")
