"""Files that an experiment file names. The SHA-256 of their bytes is part of the run's id, and their path is not."""

import hashlib
from functools import lru_cache
from pathlib import Path

from fedstrata.errors import ExperimentError
from fedstrata.process.regular_files import check_regular


def check_named(path: Path, sha256: str, key: str) -> None:
    """Check that a file is the one that the experiment names. `key` is the key of the experiment file, for messages.

    Raises:
        ExperimentError: the file has another SHA-256, or cannot be read.
    """
    found = sha256_of(path, key)
    if found != sha256:
        raise ExperimentError(
            f"{key}: the SHA-256 of {path} begins with {found[:12]}, and the run's file with {sha256[:12]}; put the "
            "run's file there"
        )


def sha256_of(path: Path, key: str) -> str:
    """Return the SHA-256 of a file. An unchanged file is read only once per process. Raises ExperimentError if the file
    cannot be read.
    """
    try:
        found = path.stat()
        return _digest(path, found.st_size, found.st_mtime_ns)
    except OSError as error:
        raise ExperimentError(f"{key}: cannot read {path}: {error.strerror}; put the file there") from None


@lru_cache(maxsize=1024)
def _digest(path: Path, _size: int, _changed_ns: int) -> str:
    return file_sha256(path)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as it is on disk. Raises OSError if the file cannot be read, or is not regular."""
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
