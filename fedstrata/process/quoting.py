"""Texts of peers in reasons, logs and records: escaped and cut, so that a peer cannot fill or imitate other lines."""

from collections.abc import Iterable
from itertools import islice

QUOTED_CHARACTERS, REASON_CHARACTERS, NAMES, SIZES = 80, 300, 4, 8


def quoted(*said: str) -> str:
    """Return texts of a peer, each in quotes with escapes: at most four texts of 80 characters."""
    listed = ", ".join(repr(text[:QUOTED_CHARACTERS]) for text in said[:NAMES])
    return listed if len(said) <= NAMES else f"{listed}, …"


def shown(*shapes: Iterable[int]) -> str:
    """Return the shapes that a peer announced: at most four shapes of eight sizes."""
    listed = ", ".join(str([*islice(shape, SIZES)]) for shape in shapes[:NAMES])
    return listed if len(shapes) <= NAMES else f"{listed}, …"


def printable(text: str) -> str:
    """Return a text on one line that cannot control a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def brief(reason: str) -> str:
    """Return a reason on one line of at most 300 characters that cannot control a terminal."""
    line = " ".join(printable(reason[: 4 * REASON_CHARACTERS]).split())
    return line if len(line) <= REASON_CHARACTERS else line[: REASON_CHARACTERS - 1] + "…"
