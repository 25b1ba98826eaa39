"""A digest of the content of arrays. Arrays with equal names, types, shapes and values have equal digests, whatever the
format of their file.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence

Bytes = bytes | memoryview


def values_digest(arrays: Iterable[tuple[str, str, Sequence[int], Iterable[Bytes]]]) -> str:
    """Return the SHA-256 of named arrays, in hexadecimal.

    Each array is given as its name, its type as NumPy names it, its shape and its bytes. The bytes are little-endian
    and row-major, in consecutive pieces. The digest takes all arrays in ascending order of names. Of each array it
    takes first the line `["fc1.weight", "float32", [32, 64]]`, then the bytes of the array. The line is JSON with a
    space after each comma, escapes for characters beyond ASCII, and a line feed at its end.
    """
    digest = hashlib.sha256()
    for name, dtype, shape, pieces in sorted(arrays, key=lambda array: array[0]):
        digest.update(f"{json.dumps([name, dtype, list(shape)])}\n".encode())
        for piece in pieces:
            digest.update(piece)
    return digest.hexdigest()
