"""Write and read a run's record as a tar archive. The last file of the archive is the summary. If the summary is
missing, the archive was cut.
"""

import tarfile
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Protocol

from emulator.runs.incoming import SUMMARY, IncomingRecord
from fedstrata.errors import PayloadError

OF_A_RECORD = ("*.json", "*.yaml", "*.csv", "models/*.safetensors")
PIECE_BYTES = 1 << 20


class Readable(Protocol):
    """Define the source of bytes from which an archive is read."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most `size`."""


def write_archive(folder: Path, file: IO[bytes] | BufferedIOBase) -> None:
    """Write the record in a run's folder as an archive to a file, or to a connection.

    The same record gives the same bytes.
    """
    paths = [path for pattern in OF_A_RECORD for path in sorted(folder.glob(pattern))]
    with tarfile.open(fileobj=file, mode="w|") as archive:
        for path in sorted(paths, key=lambda path: path.name == SUMMARY):
            member = tarfile.TarInfo(str(path.relative_to(folder)))
            member.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(member, content)


def read_archive(source: Readable, folder: Path) -> None:
    """Write the files of an archive to a run's folder. If the archive is not complete and valid, no file is written.

    Raises:
        PayloadError: the archive does not contain a record.
        TarError: the archive is damaged or cut.
        OutputError: the folder cannot be written.
    """
    last = ""
    with IncomingRecord(folder) as incoming:
        with tarfile.open(fileobj=source, mode="r|") as archive:  # type: ignore[call-overload]  # it only reads
            for member in archive:
                _add(incoming, archive, member)
                last = member.name
        if last != SUMMARY:  # tarfile does not notice a cut between two files or in a header
            raise tarfile.ReadError(f"the archive was cut before {SUMMARY}")
        incoming.finish()


def _add(incoming: IncomingRecord, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    source = archive.extractfile(member) if member.isfile() else None
    if source is None:
        raise PayloadError(f"{member.name[:100]!r} is not a file; nothing of this record was kept")
    incoming.add(member.name, b"")
    while data := source.read(PIECE_BYTES):
        incoming.add("", data)
