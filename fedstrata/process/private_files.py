"""Files and folders that only their owner may open: state may hold models and keys."""

import os
from pathlib import Path


def only_the_owner(path: str, flags: int) -> int:
    """Open a file, for `open(..., opener=...)`; one that is made thereby is its owner's alone."""
    return os.open(path, flags, 0o600)


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are not there, which only its owner may look into. Raises OSError."""
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
