"""Extract named files from an archive. Each file is written under a temporary name, then renamed. Paths in the archive
cannot lead outside the folder.
"""

import secrets
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedstrata.errors import DataError


def unpack(archive: Path, folder: Path, members: Mapping[str, str]) -> None:
    """Write the named members of a `.tar.gz` or `.zip` into a folder.

    Args:
        archive: the file; its name ends in `.tar.gz` or `.zip`.
        folder: an existing folder.
        members: the files to extract. Keys are the names of the new files, and values their names in the archive.

    Raises:
        DataError: the archive is damaged, or lacks one of the members.
    """
    opened = _zipped if archive.suffix == ".zip" else _tarred
    for name, member in members.items():
        aside = folder / f"partial-{secrets.token_hex(4)}-{name}"
        try:
            with opened(archive, member) as source, aside.open("xb") as target:
                shutil.copyfileobj(source, target)
            aside.replace(folder / name)
        except KeyError:
            raise DataError(f"the archive has no file {member}") from None
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise DataError(f"the archive is damaged: {error}") from None
        finally:
            aside.unlink(missing_ok=True)


@contextmanager
def _zipped(archive: Path, member: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(archive) as opened, opened.open(member) as source:
        yield source


@contextmanager
def _tarred(archive: Path, member: str) -> Iterator[IO[bytes]]:
    with tarfile.open(archive) as opened:
        source = opened.extractfile(member)
        if source is None:
            raise KeyError(member)
        yield source
