"""Discard output that nobody can read any more, so that a command can go on to its end."""

import errno
import io
import os
import select
import sys
from contextlib import suppress
from typing import Any, TextIO


class _Terminal(io.FileIO):
    """Write to a terminal. If the terminal is gone, discard the output, so that a run goes on to its end."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return len(data)


def lasting(stream: TextIO | None) -> TextIO:
    """Return a stream that writes to `stream`, but does not fail if the terminal is gone. If `stream` is None because
    the user has closed it, the result discards everything.
    """
    if stream is None:
        return nowhere()
    if not stream.isatty():
        return stream
    terminal = io.BufferedWriter(_Terminal(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(terminal, encoding=stream.encoding, line_buffering=True)


def nowhere() -> TextIO:
    """Return a stream that discards everything."""
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def discard(stream: TextIO) -> None:
    """Discard the text that waits in this stream, and all later text. Otherwise the interpreter would fail when it
    flushes the stream.
    """
    with nowhere() as place:
        os.dup2(place.fileno(), stream.fileno())


def discard_blocked() -> None:
    """Discard standard output and standard error if their readers have stopped reading. Otherwise the next write would
    wait for ever. If a signal handler calls this function, a write that is waiting ends, too.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):  # the stream is no file, as in a notebook
            if not select.select([], [stream], [], 0)[1]:
                discard(stream)
