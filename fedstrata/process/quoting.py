"""Texts from peers, made safe for errors, logs and records. They are escaped and shortened, so that a peer cannot fill
a log or forge other lines.
"""

from collections.abc import Iterable
from itertools import islice

QUOTED_CHARACTERS, REASON_CHARACTERS, NAMES, SIZES = 80, 300, 4, 8
SPACES = "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}"  # in numbers with units


def quoted(*said: str) -> str:
    """Return one text with up to four texts of a peer, each with at most 80 characters, in quotes and with escapes."""
    listed = ", ".join(repr(text[:QUOTED_CHARACTERS]) for text in said[:NAMES])
    return listed if len(said) <= NAMES else f"{listed}, …"


def shown(*shapes: Iterable[int]) -> str:
    """Return one text with up to four shapes that a peer announced, each with at most eight sizes."""
    listed = ", ".join(str([*islice(shape, SIZES)]) for shape in shapes[:NAMES])
    return listed if len(shapes) <= NAMES else f"{listed}, …"


def printable(text: str) -> str:
    """Return a text on one line, without characters that control a terminal."""
    return "".join(letter if letter.isprintable() or letter in SPACES else " " for letter in text)


def brief(reason: str) -> str:
    """Return a reason on one line of at most 300 characters, without characters that control a terminal."""
    line = " ".join(printable(reason[: 4 * REASON_CHARACTERS]).split())
    return line if len(line) <= REASON_CHARACTERS else line[: REASON_CHARACTERS - 1] + "…"
