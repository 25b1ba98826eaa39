"""Fetching a published file: written aside, checked by hash, then renamed into place."""

import http.client
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.request import urlopen

from fedstrata.datasets import idx
from fedstrata.errors import DataError

TIMEOUT_S = 60  # without a byte from the publisher
PIECE_BYTES = 1 << 20
MAX_BYTES = 1 << 28  # no published file of ours comes near


def download(url: str, target: Path, *, content_sha256: str) -> None:
    """Put what `url` serves at `target`, or nothing; several processes may do so at once.

    Args:
        url: an http or https address.
        target: the file to be; its folder is made if missing.
        content_sha256: of the content, decompressed if the target's name ends in `.gz`.

    Raises:
        DataError: the address cannot be reached, the content is another, or the folder cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f"partial-{secrets.token_hex(4)}-{target.name}")
        with urlopen(url, timeout=TIMEOUT_S) as reply, _removed_unless_renamed(aside):  # noqa: S310  # a constant
            with aside.open("xb") as file:
                _copy(reply, file)
            _check_content(aside, content_sha256)
            aside.replace(target)
    except (OSError, http.client.HTTPException, DataError) as error:
        raise DataError(f"cannot download {url} to {target}: {error}") from None


@contextmanager
def _removed_unless_renamed(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _check_content(path: Path, expected: str) -> None:
    found = idx.content_sha256(path)
    if found != expected:
        raise DataError(f"its content has SHA-256 {found}, not the published {expected}")


def _copy(reply: http.client.HTTPResponse, file: BinaryIO) -> None:
    length = 0
    while piece := reply.read(PIECE_BYTES):
        length += len(piece)
        if length > MAX_BYTES:
            raise DataError(f"it is larger than {MAX_BYTES} bytes")
        file.write(piece)
    file.flush()
    os.fsync(file.fileno())
