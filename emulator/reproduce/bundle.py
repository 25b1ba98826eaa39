"""Open a bundle safely. A bundle is the folder of a sweep or of a reproduced table, or a tar of such a folder. It may
come from a stranger.

Nothing in a bundle is executed. A bundle cannot make Fedstrata read or write files outside the bundle. Its experiments
may use only data sets, models and methods that come with Fedstrata.
"""

import lzma
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Literal

from emulator.reproduce.published import SECTION, TABLE
from emulator.results.output import new_file
from emulator.sweeps.file import Sweep, sweep_of
from emulator.sweeps.sweep_folder import SWEEP
from fedstrata.errors import DataError
from fedstrata.experiment.keys_of_files import LAST_NAMES
from fedstrata.experiment.yaml_files import read_yaml
from fedstrata.process.regular_files import check_regular

MOST_FILES, MOST_BYTES, MOST_TEXT = 100_000, 4 << 30, 4 << 20
LARGEST_TABLE = 64 << 20  # bytes of a file that is read as a whole, which is every file except models
LONGEST_HEADERS, MOST_HEADERS, MOST_KEYS = 64 << 10, 128 << 20, 100  # of a member of a tar, and of all members
Mode = Literal["r:", "r:gz", "r:bz2", "r:xz"]
MAGIC: Mapping[bytes, Mode] = {b"\x1f\x8b": "r:gz", b"BZh": "r:bz2", b"\xfd7zXZ\x00": "r:xz"}
MODEL = ".safetensors"
NOT_IN_A_BUNDLE = {"state", "logs"}
DEEPEST = 12  # the deepest nesting of folders
UNREADABLE = (OSError, EOFError, ValueError, RecursionError, tarfile.TarError, zlib.error, lzma.LZMAError)
PLAIN = (str, int, float, type(None))  # YAML also has bytes, which a check of texts would miss


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Hold an opened bundle: its folder and its sweep."""

    folder: Path
    sweep: Sweep


@contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """Open a bundle, and yield it. A tar is unpacked into a temporary folder, which is removed afterwards.

    Raises:
        DataError: the path is no bundle, or the bundle is not safe to open.
    """
    if path.is_dir():
        _check_files(path)
        yield Bundle(folder=path, sweep=_sweep(path))
        return
    with TemporaryDirectory(prefix="fedstrata-bundle-") as place:
        folder = _unpacked(path, Path(place))
        yield Bundle(folder=folder, sweep=_sweep(folder))


def _check_files(folder: Path) -> None:
    """Check that a folder with a bundle has only folders and regular files, not too many and not too large. State and
    logs of runs are not part of the bundle.

    Raises:
        DataError: there is a link, a pipe or a device, or there is too much content.
    """
    count = total = 0
    for place, folders, files in os.walk(folder):
        if Path(place).name.startswith("seed-"):
            folders[:] = [name for name in folders if name not in NOT_IN_A_BUNDLE]
        for path in (Path(place, name) for name in (*folders, *files)):
            found = path.lstat()
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                raise DataError(f"{path} is a link, a pipe or a device; put the file or folder itself there")
            count, total = count + 1, total + found.st_size
            _check_size(path, found.st_size)
            if count > MOST_FILES or total > MOST_BYTES:
                raise DataError(
                    f"{folder} has more than {MOST_FILES} files or {MOST_BYTES >> 30} GB; give a sweep's folder"
                )


def _check_size(path: PurePath, size: int) -> None:
    """Raise DataError if a file of a bundle is too large to be read as a whole. Models are read in parts."""
    if size > LARGEST_TABLE and path.suffix != MODEL:
        raise DataError(f"{path} has {size} bytes, more than the limit of {LARGEST_TABLE}; leave the file out")


def _sweep(folder: Path) -> Sweep:
    """Return the sweep of a bundle. Before a file is parsed as an experiment, `_refuse_foreign` checks its content.

    Raises:
        DataError: a file is missing or damaged, or needs something that is not in the bundle.
    """
    where = folder / SWEEP
    document = _own(where)
    if (folder / TABLE).exists():
        _own(folder / TABLE)
    sweep = sweep_of(document, name=folder.resolve().name, where=str(where), beside=folder)
    for run in sweep.runs:
        path = folder / run.path / "experiment.yaml"
        if path.exists():
            _refuse_foreign(_document(path), str(path))
    return sweep


def _own(path: Path) -> Mapping[str, Any]:
    """Return the content of a bundle's sweep file. Raises DataError if the file names code that does not come with
    Fedstrata, or needs another file.
    """
    document = _document(path)
    _refuse_foreign({key: value for key, value in document.items() if key != SECTION}, str(path))
    if not isinstance(document.get("base"), Mapping):
        raise DataError(f"{path}: base must be the experiment itself, as `fedstrata sweep` writes it")
    return document


def _document(path: Path) -> Mapping[str, Any]:
    if not path.is_file() or path.is_symlink():
        raise DataError(
            f"{path.parent} is not a bundle, because it has no {path.name}; give the folder of a sweep, or a tar of it"
        )
    if path.stat().st_size > MOST_TEXT:
        raise DataError(f"{path} has more than {MOST_TEXT} bytes, too many for a sweep file; nothing was run")
    try:
        document = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(document, Mapping):
        raise DataError(f"{path} must be a mapping of keys to values, not {type(document).__name__}")
    return document


def _refuse_foreign(node: Any, where: str, key: str = "") -> None:
    """Check a document with all its nested values. Raises DataError if a value names code that does not come with
    Fedstrata, or a file that only the bundle's author has.

    `where` begins error messages. `key` is the dotted key of `node`, and empty for the whole document.
    """
    if isinstance(node, Mapping):
        for name, child in node.items():
            # A name such as `KEY=VALUE #` would override KEY
            if not isinstance(name, PLAIN) or {":", "="} & set(str(name)):
                raise DataError(f"{where}: {name!r:.80} cannot be a key of an experiment or sweep; nothing was run")
            _refuse_foreign(child, where, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for child in node:
            _refuse_foreign(child, where, key)
    elif not isinstance(node, PLAIN):
        raise DataError(f"{where}: {key} is {node!r:.80}, neither text nor a number; nothing was run")
    elif isinstance(node, str):
        last = key.rpartition(".")[2].strip()
        if ":" in node:
            raise DataError(f"{where}: {key} is {node!r:.80}: a bundle must not bring own code; nothing was run")
        if last in {*LAST_NAMES, "folder"} or node == "folder":
            raise DataError(
                f"{where}: {key} is {node!r:.80}, a file of the bundle's maker; the bundle cannot be replayed"
            )


def _unpacked(path: Path, place: Path) -> Path:
    """Unpack a tar, and return its top folder. If this folder lacks the sweep's file and has exactly one subfolder,
    return the subfolder instead.
    """
    try:
        check_regular(path)
        with path.open("rb") as file, _BoundedTar.open(fileobj=file, mode=_mode(file)) as archive:
            for member in list(_checked(archive, path)):
                _write(archive, member, place / member.name)
    except UNREADABLE as error:
        said = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise DataError(f"cannot open the bundle {path}: {said}; give the folder of a sweep, or a tar of it") from None
    if (place / SWEEP).exists():
        return place
    inner = [each for each in place.iterdir() if each.is_dir()]
    return inner[0] if len(inner) == 1 else place


def _mode(file: BinaryIO) -> Mode:
    """Return the mode in which a tar is opened. It follows from the first bytes, because trying all compressions takes
    minutes for some files.
    """
    beginning = file.read(max(map(len, MAGIC)))
    file.seek(0)
    return next((mode for magic, mode in MAGIC.items() if beginning.startswith(magic)), "r:")


class _BoundedTar(tarfile.TarFile):
    """Read a tar, and refuse long headers. Without this limit, headers could fill the memory. A header may have any
    number of keys, and `tarfile` copies the keys of global headers into each member.
    """

    def next(self) -> tarfile.TarInfo | None:
        """Return the next member. Raises ReadError if the headers before its content are too long."""
        whole = self.fileobj
        self.fileobj = _BoundedReads(whole)
        try:
            member = super().next()
        finally:
            self.fileobj = whole
        if len(self.pax_headers) > MOST_KEYS:
            raise tarfile.ReadError(f"its headers have more than {MOST_KEYS} keys for all members")
        return member


class _BoundedReads:
    """Pass on calls to a file. After `LONGEST_HEADERS` bytes in total, refuse to read more."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, LONGEST_HEADERS

    def read(self, count: int) -> bytes:
        """Return the next bytes, at most `count`. Raises ReadError if the `count`s of all calls add up to more than
        `LONGEST_HEADERS`.
        """
        self._left -= count
        if self._left < 0:
            raise tarfile.ReadError(f"a member has headers of more than {LONGEST_HEADERS} bytes")
        found: bytes = self._file.read(count)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write a checked member of a tar to a new file or folder. Only its name, its kind and its bytes are used. Other
    fields of its header, such as permissions, are ignored.
    """
    source = archive.extractfile(member)
    (target if source is None else target.parent).mkdir(parents=True, exist_ok=True)
    if source is not None:
        with source, new_file(target) as file:
            shutil.copyfileobj(source, file)


def _checked(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive. Raises DataError if a member is no file or folder, if its path leads out of the
    archive, or if there is too much content.
    """
    total = headers = 0
    for count, member in enumerate(archive, start=1):
        name = PurePosixPath(member.name)
        total += max(0, member.size)  # a header may have a negative size
        headers += member.offset_data - member.offset
        if headers > MOST_HEADERS:
            raise DataError(f"{path} has more than {MOST_HEADERS} bytes of headers; unpack it, and give its folder")
        if name.is_absolute() or ".." in name.parts or len(name.parts) > DEEPEST:
            raise DataError(
                f"{path}: {member.name!r:.120} is outside of the bundle or nested too deep; nothing was unpacked"
            )
        if not (member.isreg() or member.isdir()):
            raise DataError(f"{path}: {member.name!r:.120} is not a file or folder; nothing was unpacked")
        if count > MOST_FILES or total > MOST_BYTES:
            raise DataError(
                f"{path} has more than {MOST_FILES} files or {MOST_BYTES >> 30} GB; unpack it, and give its folder"
            )
        _check_size(name, member.size)
        yield member
