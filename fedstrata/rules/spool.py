"""The updates of one round on disk, for rules that need all updates at once."""

import errno
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedstrata.errors import StateError
from fedstrata.process.private_files import make_private
from fedstrata.tensors import Flat

BLOCK_BYTES = 4 << 20  # of all updates together
FLOAT = np.dtype("<f4")


class Spool:
    """Hold one row of `size` float32 values per child, in a file without a name. The file disappears when the process
    ends, and only its owner can read it.
    """

    def __init__(self, size: int, folder: Path) -> None:
        self.size = size
        self._folder = folder
        self._rows: dict[str, int] = {}
        with self._usable():
            make_private(folder)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # closed by `close`
        self.close = weakref.finalize(self, self._file.close)  # deletes the file, also if the round is given up

    def write(self, child_id: str, start: int, values: Flat) -> None:
        """Write values into a child's row, from `start` on. Raises StateError if the disk refuses to write."""
        row = self._rows.setdefault(child_id, len(self._rows))
        with self._usable():
            self._file.seek((row * self.size + start) * FLOAT.itemsize)
            left = np.ascontiguousarray(values, FLOAT).view(np.uint8).data
            while left:  # without a buffer, one call may write only a part
                left = left[self._file.write(left) or 0 :]

    def blocks(self, children: Sequence[str]) -> Iterator[tuple[int, int, Flat]]:
        """Yield blocks of elements: first element, last element (exclusive) and the values, with a row per child in the
        given order, shape (children, elements).
        """
        if not (children and self.size):
            return
        width = max(1, BLOCK_BYTES // (FLOAT.itemsize * len(children)))
        for start in range(0, self.size, width):
            stop = min(self.size, start + width)
            block = np.empty((len(children), stop - start), FLOAT)
            for child_id, values in zip(children, block, strict=True):
                self._read(self._rows[child_id] * self.size + start, values)
            yield start, stop, block

    def _read(self, position: int, values: Flat) -> None:
        """Fill an array with the values from a position of the file on. A mapped file would count as memory."""
        left, at = values.view(np.uint8).data, position * FLOAT.itemsize
        with self._usable("read"):
            while left:  # one call may read only a part
                count = os.preadv(self._file.fileno(), [left], at)
                if not count:
                    raise OSError(errno.EIO, "the file ends too early")
                left, at = left[count:], at + count

    @contextmanager
    def _usable(self, what: str = "write") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateError(
                f"cannot {what} updates in {self._folder}: {error.strerror}; free space or choose another folder"
            ) from error
