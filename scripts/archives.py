"""Archives with bytes that depend only on the names and contents of their files."""

import gzip
import tarfile
import zipfile
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path


def pack(folder: Path, archive: Path, *, root: str, time: int) -> None:
    """Write a folder's files to a .tar.gz, under `root`, sorted by name. All files have the same time (seconds since
    1970).
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=time) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in files:
            content = path.read_bytes()
            member = tarfile.TarInfo(f"{root}/{path.relative_to(folder).as_posix()}")
            member.size, member.mtime = len(content), time
            member.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(member, BytesIO(content))


def zipped(folder: Path, archive: Path, *, root: str, time: int) -> None:
    """Write a folder's files to a .zip, under `root`, sorted by name. All files have the same time (seconds since
    1970).
    """
    at = datetime.fromtimestamp(time, UTC).timetuple()[:6]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            member = zipfile.ZipInfo(f"{root}/{path.relative_to(folder).as_posix()}", at)
            member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            file.writestr(member, path.read_bytes())


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive that this project made and that has one folder at its top. Return this folder."""
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian's Python 3.11.2 has none
        tar.extractall(folder)  # noqa: S202  # this project has made it
    (top,) = folder.iterdir()
    return top
