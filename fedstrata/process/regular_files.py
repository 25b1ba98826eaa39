"""Refuse paths that a program could read without end: pipes, devices, and files that are too large."""

import errno
import stat
from pathlib import Path


def check_regular(path: Path, most_bytes: int | None = None) -> None:
    """Check that a path, or the target of a link, is a regular file of at most `most_bytes` bytes.

    Raises:
        OSError: there is no such file, it is not a regular file, or it is too large.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", str(path))
    if most_bytes is not None and found.st_size > most_bytes:
        said = f"it has {found.st_size} bytes, more than the limit of {most_bytes}"
        raise OSError(errno.EFBIG, said, str(path))
