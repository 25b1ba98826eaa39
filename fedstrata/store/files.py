"""Files that are either wholly there or not there at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedstrata.errors import StateError


@contextmanager
def write_aside(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write that takes its name only when the block ends well; with `durable`, flushed to disk first.

    Raises:
        StateError: the disk is full or refuses; what was at `path` is still there.
    """
    aside = path.with_name(f".{path.name}.aside")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb+") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        aside.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise StateError(f"cannot write {path}: {error.strerror}; free space or choose another folder") from error


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
