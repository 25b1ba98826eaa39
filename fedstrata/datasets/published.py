"""Find the files of a published data set: in a folder of the user, in a usual folder, or at the publisher's address."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedstrata.datasets.idx import content_sha256
from fedstrata.errors import DataError
from fedstrata.experiment import DataSettings


@dataclass(frozen=True, kw_only=True)
class Published:
    """Describe a published data set: its files, and how they are downloaded."""

    name: str  # name of the data set in the experiment file, and of its folder
    title: str
    files: Sequence[str]  # names; a file may also be gzipped, with .gz after its name
    fetch: Callable[[Path, Sequence[str]], None]  # downloads the named files into a folder
    content_sha256: Mapping[str, str] = field(default_factory=dict)  # by file; empty if only the archive's is known
    usual_places: Sequence[Path] = ()
    subfolder: str = ""  # subfolder that may contain the files, as in the publisher's archive
    package: str = ""  # package of Debian and Ubuntu that installs the files in one of `usual_places`


def find_files(published: Published, settings: DataSettings) -> dict[str, Path]:
    """Return the files of a data set by name. Missing files are downloaded if the settings allow it.

    Raises:
        DataError: a file is missing and may not be downloaded, or its download fails.
    """
    places = _places(published, settings.folder)
    for place in places:
        if files := _all_in(published, place):
            return files
    if settings.download:
        return _fetched(published, places[0])
    looked = ", ".join(str(place) for place in places)
    raise DataError(f"{published.title} is not in {looked}; {_advice(published)}, or set data.download: true")


def find_folder(published: Published) -> Path | None:
    """Return the first folder that contains all files, of the folders in which a run looks for them. If no folder
    contains all files, return None.
    """
    return next((place for place in _places(published, None) if _all_in(published, place)), None)


def fetch_all(published: Published, folder: Path | None = None) -> Path:
    """Download the missing files of a data set into a folder, and return the folder.

    Args:
        published: the data set.
        folder: the folder for the files. None means the first usual folder that contains all files or, without such a
            folder, the user's folder.

    Raises:
        DataError: a file differs from the published file, or cannot be downloaded.
    """
    place = folder or find_folder(published) or user_folder(published.name)
    try:
        _check_content(published, _all_in(published, place) or _fetched(published, place))
    except DataError as error:
        raise DataError(f"{error}; {_package(published)}" if published.package else str(error)) from None
    return place


def user_folder(name: str) -> Path:
    """Return the folder to which a data set is downloaded. It is in $FEDSTRATA_DATA or, if this is not set, in the
    user's XDG data folder.
    """
    chosen = os.environ.get("FEDSTRATA_DATA")
    if chosen:
        return Path(chosen) / name
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111  # never fails
    return Path(data) / "fedstrata" / name


def _places(published: Published, folder: Path | None) -> list[Path]:
    """Return the folders that may have the files, in the order in which they are searched. Missing files are downloaded
    to the first folder.
    """
    return [*([folder] if folder else []), user_folder(published.name), *published.usual_places]


def _all_in(published: Published, place: Path) -> dict[str, Path]:
    """Return all files by name, from a folder or, if some are missing there, from its sub-folder `published.subfolder`.
    If neither folder has all files, return an empty mapping.
    """
    for folder in (place, place / published.subfolder):
        files = _files_in(folder, published.files)
        if len(files) == len(published.files):
            return files
    return {}


def _files_in(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the files that the folder has, plain or gzipped, by name."""
    candidates = {name: (folder / name, folder / f"{name}.gz") for name in names}
    found = {name: [path for path in paths if path.is_file()] for name, paths in candidates.items()}
    return {name: paths[0] for name, paths in found.items() if paths}


def _fetched(published: Published, folder: Path) -> dict[str, Path]:
    there = _files_in(folder, published.files)
    published.fetch(folder, [name for name in published.files if name not in there])
    return _files_in(folder, published.files)


def _check_content(published: Published, files: Mapping[str, Path]) -> None:
    for name, expected in published.content_sha256.items():
        if content_sha256(files[name]) != expected:
            raise DataError(f"{files[name]} differs from the published file; delete it and download it again")


def _advice(published: Published) -> str:
    """Return a text that says how to get the files. In a pod, the text says how to name their folder."""
    if os.environ.get("FEDSTRATA_POD_NAME"):
        return (
            f"give the pods a folder that contains {published.name}/, with the chart's values data.type hostPath or "
            "claim"
        )
    package = f"{_package(published)}, " if published.package else ""
    return f"fedstrata data {published.name} fetches it, {package}or set data.folder to its folder"


def _package(published: Published) -> str:
    return f"on Debian and Ubuntu apt-get install {published.package} installs it"
