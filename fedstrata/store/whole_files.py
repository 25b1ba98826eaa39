"""Files that are either complete or absent, and that only their owner may open."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from fedstrata.errors import StateError
from fedstrata.process.descriptors import when_there_is_room
from fedstrata.process.fault_points import reach
from fedstrata.process.private_files import make_private, only_the_owner
from fedstrata.process.waiting import pass_time

CLAIM_TRIES, CLAIM_PAUSE_S = 50, 0.2  # together longer than a process takes to stop
_CLAIMS: list[TextIO] = []  # files that stay open, because closing a file releases its lock
SEAL_BYTES = hashlib.sha256().digest_size
# Files are kept for the open round, and for the previous one, to which a restarted server may return.
GLOBAL_ROUNDS_KEPT = 2


@contextmanager
def write_aside(path: Path, *, durable: bool = True, label: str = "") -> Iterator[BinaryIO]:
    """Yield a temporary file for writing. If the block succeeds, rename the file to `path`. With `durable`, flush the
    file to disk before the renaming.

    If the block raises an error, no file remains. Only the owner can open the file. The temporary file's name contains
    `label`. Writers that may write the same file at the same time must set different labels.

    Raises:
        StateError: the disk is full or refuses to write. An old file at `path` is unchanged.
    """
    aside = path.with_name(f".{path.name}{label}.aside")
    try:
        with _opened(aside) as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        reach("state_write")
        aside.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        _remove(aside)
        raise StateError(f"cannot write {path}: {error.strerror}; free space or choose another folder") from error
    except BaseException:
        _remove(aside)
        raise


def _opened(path: Path) -> BinaryIO:
    """Create a file, and open it for writing. If its folder is missing, create the folder first."""

    def opened() -> BinaryIO:
        path.unlink(missing_ok=True)  # otherwise the permissions of an old file would stay
        return open(path, "xb+", opener=only_the_owner)  # Path.open has no parameter opener

    try:
        return when_there_is_room(opened)
    except FileNotFoundError:
        make_private(path.parent)
        return when_there_is_room(opened)


def _remove(path: Path) -> None:
    """Remove a file if it exists. Ignore a failure, because the caller already raises an earlier error."""
    with suppress(OSError):
        path.unlink()


def claim(folder: Path) -> None:
    """Reserve a folder of state for this process until the process ends. If another process still uses the folder, wait
    up to ten seconds for its end.

    Raises:
        StateError: another process of this machine still uses the folder, or the folder cannot be written.
    """
    _CLAIMS.append(_locked(folder))


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Reserve a folder of state while the block runs. Raises StateError like `claim`."""
    with _locked(folder):
        yield


def _locked(folder: Path) -> TextIO:
    """Lock a folder, and return its open lock file. The lock lasts while the file is open."""
    path = folder / ".lock"
    try:
        lock = open(path, "w", opener=only_the_owner)  # noqa: SIM115  # kept open
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror}; choose another folder") from None
    for _ in range(CLAIM_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass_time(CLAIM_PAUSE_S)
        else:
            return lock
    lock.close()
    raise StateError(f"{folder} is in use by another process; stop that process, or give another folder")


def clear_asides(folder: Path) -> None:
    """Remove the incomplete temporary files in a folder. Processes that were killed have left them."""
    for path in folder.glob(".*.aside"):
        path.unlink(missing_ok=True)


def write_sealed(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a small file that begins with the SHA-256 of its content. Raises StateError like `write_aside`."""
    with write_aside(path, durable=durable) as file:
        file.write(hashlib.sha256(data).digest() + data)


def read_sealed(path: Path) -> bytes:
    """Return the content of a file that `write_sealed` wrote. Raises StateError, which names the file, if the file is
    missing, truncated or altered.
    """
    try:
        content = when_there_is_room(path.read_bytes)
    except OSError as error:
        raise StateError(f"cannot read {path}: {error.strerror}") from None
    seal, data = content[:SEAL_BYTES], content[SEAL_BYTES:]
    if hashlib.sha256(data).digest() != seal:
        raise StateError(f"{path} is truncated or altered: its content does not match its checksum")
    return data


def sync_folder(folder: Path) -> None:
    """Flush the file names in a folder to disk, so that renamed files keep their new names after a crash of the
    machine.
    """
    descriptor = when_there_is_room(lambda: os.open(folder, os.O_RDONLY))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
