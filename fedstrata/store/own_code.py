"""The user's own code and data in an experiment: the SHA-256 of each file, which is part of the run's id.

A command adds the digests of the files on its machine. Each process then checks the files that it has.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.sections import PLUGIN
from fedstrata.own_files import own_files
from fedstrata.read_files import read_files
from fedstrata.store.named_files import sha256_of

SECTIONS = ("data", "model", "architectures", "partition", "task", "method", "aggregation", "attacks", "devices")


def with_digests(experiment: Experiment) -> Experiment:
    """Return the experiment with the digest of each file on this machine that has the user's own code or data. If the
    experiment has digests already, check them. Raises the errors of `check_files`.
    """
    if experiment.files:
        check_files(experiment)
        return experiment
    found = {**_code(experiment, SECTIONS), **_data(experiment)}
    return experiment.model_copy(update={"files": {key: _sha256(path) for key, path in found.items()}})


def check_code(experiment: Experiment, sections: Iterable[str] = SECTIONS) -> None:
    """Check that no file with the user's own code on this machine has changed since the run began. `sections` lists the
    sections of the experiment file that name the code.

    Raises:
        ExperimentError: a file has changed since the run began.
        PluginError: Python imports another module in place of the user's file.
    """
    if experiment.files:  # otherwise there are no own files, or the run began without a command
        _check(experiment, _code(experiment, sections))


def check_files(experiment: Experiment) -> None:
    """Check the files with the user's own code and data on this machine. Raises the errors of `check_code`."""
    check_code(experiment)
    if experiment.files:
        _check(experiment, _data(experiment))


def _check(experiment: Experiment, files: Mapping[str, Path]) -> None:
    for key, path in files.items():
        wanted, found = experiment.files.get(key), _sha256(path)
        if wanted not in {None, found}:
            raise ExperimentError(
                f"{path} has changed since the run began: its SHA-256 begins with {found[:12]}, and the run's with "
                f"{wanted:.12}; restore the file, or begin a new run"
            )


def changed_code(before: Experiment, now: Experiment) -> list[str] | None:
    """Return the user's own files that differ between two experiments. If anything else differs, return None. A file
    that is not on this machine does not differ.
    """
    same = {**before.files, **now.files}
    if before.model_copy(update={"files": same}).digest != now.model_copy(update={"files": same}).digest:
        return None
    return sorted(key for key in now.files if now.files[key] != before.files.get(key))


def _code(experiment: Experiment, sections: Iterable[str]) -> dict[str, Path]:
    document = experiment.model_dump(mode="json", by_alias=True)
    document["partition"] = experiment.partition.kind  # its other texts are names
    modules = {text.partition(":")[0] for section in sections for text in _own_names(document[section])}
    code = {key: path for module in sorted(modules) for key, path in own_files(module).items()}
    return {key: path for module in code.values() for key, path in read_files(module).items()} | code


def _data(experiment: Experiment) -> dict[str, Path]:
    """Return the files of the tables in `data.folder`. With a local partition, return no files, because each device has
    other tables.
    """
    folder = experiment.data.folder
    if experiment.data.name != "folder" or experiment.partition.is_local:
        return {}
    if folder is None or not folder.is_dir():
        return {}
    tables = [path for path in folder.iterdir() if path.stem in {"train", "test"}]
    if not any(path.stem == "train" for path in tables):
        place = folder / "devices" if (folder / "devices").is_dir() else folder
        tables = [path for path in place.iterdir() if path.name[0] != "."]
    files = (each for table in tables for each in (table.rglob("*") if table.is_dir() else [table]))
    return {f"data.folder/{each.relative_to(folder).as_posix()}": each for each in sorted(files) if each.is_file()}


def _own_names(node: Any) -> Iterator[str]:
    """Yield each text in a section that may name own code, such as `net:Net`."""
    if isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            yield from _own_names(child)
    elif isinstance(node, str) and PLUGIN.match(node):
        yield node


def _sha256(path: Path) -> str:
    """Return the SHA-256 of a file. In Python files, a line end of Windows is treated like a line end of Unix."""
    if path.suffix != ".py":
        return sha256_of(path, "data.folder")
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
