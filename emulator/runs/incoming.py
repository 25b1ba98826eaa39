"""Receive a run record. File names are checked. Files are written to a temporary folder, and renamed when the record is
complete.
"""

import contextlib
import re
import shutil
from pathlib import Path
from typing import IO, Self

from fedstrata.errors import OutputError, PayloadError

ASIDE = ".record-incoming"
RECORD_FILE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\.(json|yaml|csv)|models/[a-z0-9][a-z0-9_-]{0,63}\.safetensors")
SUMMARY = "summary.json"  # moved to its place last, so a folder with this file is complete
FILES_MAX = 10_000


class IncomingRecord:
    """Take a record's files in pieces, and write them to a temporary folder. `finish` moves them to the record's
    folder. If `finish` is not called, all files are deleted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._aside = folder / ASIDE
        self._names: list[str] = []
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._clear()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with contextlib.suppress(OSError):  # such as a full disk: the present error says so already
            self._close()
        self._clear()
        if isinstance(error, OSError):
            raise self._unwritable(error) from None

    def add(self, name: str, data: bytes) -> None:
        """Add the next piece of the current file. If `name` is not empty, the piece begins a new file with this name.

        Raises:
            PayloadError: the name is impossible for a record, or was used before.
        """
        if name:
            self._begin(name)
        if self._file is None:
            raise PayloadError("the record begins with bytes, but its first part must name a file")
        self._file.write(data)

    def finish(self) -> None:
        """Move all files to the record's folder. Raises PayloadError if the summary is missing."""
        self._close()
        if SUMMARY not in self._names:
            raise PayloadError(f"the record has no {SUMMARY}, so it is incomplete; fetch it again")
        for name in sorted(self._names, key=lambda name: name == SUMMARY):
            target = self._folder / name
            target.parent.mkdir(exist_ok=True)
            (self._aside / name).replace(target)

    def _begin(self, name: str) -> None:
        if not RECORD_FILE.fullmatch(name):
            raise PayloadError(f"{name[:100]!r} is not a file of a run record; nothing of this record was kept")
        if name in self._names or len(self._names) == FILES_MAX:
            raise PayloadError(f"the record names {name!r} twice, or more than {FILES_MAX} files")
        self._close()
        self._names.append(name)
        path = self._aside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _clear(self) -> None:
        try:
            if self._aside.exists():
                shutil.rmtree(self._aside)
        except OSError as error:  # for example, it belongs to another user
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write the record to {error.filename or self._folder}: {error.strerror}; free space, or remove "
            "what is in the way, and run again"
        )
