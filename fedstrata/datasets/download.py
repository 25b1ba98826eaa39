"""Download published files. A file is written under a temporary name, checked by its hash, then renamed."""

import http.client
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.error import URLError
from urllib.request import urlopen

from fedstrata.datasets import idx
from fedstrata.datasets.archives import unpack
from fedstrata.errors import DataError
from fedstrata.store.named_files import file_sha256

TIMEOUT_S = 60  # a download fails after this time without a byte from the publisher
PIECE_BYTES = 1 << 20
MAX_BYTES = 1 << 30  # much more than the largest file that Fedstrata downloads


def download(url: str, target: Path, *, content_sha256: str) -> None:
    """Download `url` to `target`. The target is written whole or not at all. Several processes may download to the same
    target at the same time.

    Args:
        url: an http or https address.
        target: the new file; its folder is made if missing.
        content_sha256: SHA-256 of the content, decompressed if the target's name ends in `.gz`.

    Raises:
        DataError: the address cannot be reached, the content has another SHA-256, or the folder cannot be written.
    """
    with _with_both_names(url, target), _fetched(url, target) as aside:
        _check(idx.content_sha256(aside), content_sha256)
        aside.replace(target)


def download_members(url: str, folder: Path, members: Mapping[str, str], *, archive_sha256: str) -> None:
    """Download the archive `url`, `.tar.gz` or `.zip`, and extract only the named files into a folder.

    Args:
        url: an http or https address that ends in the archive's name.
        folder: the folder for the files; it is made if missing.
        members: the files to extract. Keys are the names of the new files, and values their names in the archive.
        archive_sha256: SHA-256 of the archive as the address sends it.

    Raises:
        DataError: as in `download`, or the archive is damaged or lacks one of the files.
    """
    with _with_both_names(url, folder), _fetched(url, folder / url.rpartition("/")[2]) as aside:
        _check(file_sha256(aside), archive_sha256)
        unpack(aside, folder, members)


@contextmanager
def _with_both_names(url: str, target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException, DataError) as error:
        raise DataError(f"cannot download {url} to {target}: {error}{_advice(error)}") from None


def _advice(error: Exception) -> str:
    if isinstance(error, URLError | http.client.HTTPException):
        return "; check this machine's network, or download the file elsewhere and copy it to that path"
    return "; choose another folder" if isinstance(error, OSError) else ""


@contextmanager
def _fetched(url: str, target: Path) -> Iterator[Path]:
    """Yield a temporary file next to the target, with the content of `url`. Delete the file afterwards, unless it was
    renamed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f"partial-{secrets.token_hex(4)}-{target.name}")
    try:
        with urlopen(url, timeout=TIMEOUT_S) as reply, aside.open("xb") as file:  # noqa: S310  # a constant
            _copy(reply, file)
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def _check(found: str, expected: str) -> None:
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
