"""Discard the output of a command that nobody can read any more, so that the command can end."""

import os
import select
import sys
from contextlib import suppress
from typing import TextIO


def nowhere() -> TextIO:
    """Return a stream that discards everything."""
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def discard(stream: TextIO) -> None:
    """Discard what this stream still holds, and everything that is written to it later. Otherwise the interpreter fails
    again when it flushes the stream.
    """
    with nowhere() as place:
        os.dup2(place.fileno(), stream.fileno())


def discard_blocked() -> None:
    """Discard standard output and standard error if their readers have stopped reading. Otherwise the next write would
    wait for ever. A write that waits now ends, if a signal handler calls this function.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):  # the stream is no file, as in a notebook
            if not select.select([], [stream], [], 0)[1]:
                discard(stream)
