"""What peers say, as reasons, logs and records repeat it: escaped and cut, so that nobody's words fill another's."""

from collections.abc import Iterable
from itertools import islice

QUOTED_CHARACTERS, REASON_CHARACTERS, NAMES, SIZES = 80, 300, 4, 8


def quoted(*said: str) -> str:
    """Return the words of a peer, each text in quotes, with escapes: four texts and 80 characters of each at most."""
    listed = ", ".join(repr(text[:QUOTED_CHARACTERS]) for text in said[:NAMES])
    return listed if len(said) <= NAMES else f"{listed}, …"


def shown(*shapes: Iterable[int]) -> str:
    """Return the shapes that a peer announced, eight sizes of each and of many shapes four."""
    listed = ", ".join(str([*islice(shape, SIZES)]) for shape in shapes[:NAMES])
    return listed if len(shapes) <= NAMES else f"{listed}, …"


def printable(text: str) -> str:
    """Return a text that cannot command a terminal, in one line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def brief(reason: str) -> str:
    """Return a reason on one line of at most 300 characters, without what could command a terminal."""
    line = " ".join(printable(reason[: 4 * REASON_CHARACTERS]).split())
    return line if len(line) <= REASON_CHARACTERS else line[: REASON_CHARACTERS - 1] + "…"
