"""Files and folders that only their owner may open, because they may contain models and keys."""

import os
from pathlib import Path

from fedstrata.errors import OutputError


def only_the_owner(path: str, flags: int) -> int:
    """Open a file; this function is an `opener` for Python's `open`. If the file is new, only its owner may open it."""
    return os.open(path, flags, 0o600)


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, so that only their owner may open them. Raises OSError if this fails."""
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def private_folder(folder: Path) -> None:
    """Create a folder that only its owner may open, if the folder is missing. Raises OutputError if this fails."""
    try:
        make_private(folder)
    except OSError as error:
        raise OutputError(f"cannot create the folder {folder}: {error.strerror}; give another folder") from None
