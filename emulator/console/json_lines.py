"""Print lines of JSON for other programs. With `json_alone`, standard output has nothing else."""

import io
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast

from fedstrata.process.json_text import json_text


class _Aside(io.TextIOBase):
    """Send text to standard error. In all other respects, act as the standard output `lines`."""

    def __init__(self, lines: TextIO) -> None:
        self.lines = lines

    def write(self, text: str, /) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()
        self.lines.flush()

    def isatty(self) -> bool:
        return self.lines.isatty()

    def fileno(self) -> int:
        return self.lines.fileno()

    def writable(self) -> bool:
        return True


@contextmanager
def json_alone() -> Iterator[None]:
    """During the block, standard output gets only the lines of `print_json`. Other text, such as text that own code
    prints, goes to standard error.
    """
    with redirect_stdout(cast(TextIO, _Aside(sys.stdout))):
        yield


def print_json(fields: Mapping[str, Any]) -> None:
    """Print one line of JSON on standard output, and flush the output."""
    lines = sys.stdout.lines if isinstance(sys.stdout, _Aside) else sys.stdout
    print(json_text(fields), file=lines, flush=True)
