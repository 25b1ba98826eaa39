"""The keys of an experiment file that name other files. In a key, `*` stands for each entry of a mapping or list."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

HASHED = ("model.weights", "architectures.*.model.weights", "partition.file")  # runs read them; KEY_sha256 is beside
TRACES = ("links.traces.*.file",)  # their content becomes a part of the experiment
FILE_KEYS = (*HASHED, *TRACES)
LAST_NAMES = frozenset(key.rpartition(".")[2] for key in FILE_KEYS)
Section = dict[str, Any]


def with_files(
    document: Mapping[str, Any], keys: Iterable[str], changed: Callable[[Section, str, str], Section]
) -> Section:
    """Return a copy of an experiment's document. Each section in which one of `keys` names a file is replaced by
    `changed(section, name, key)`. Here `key` is the full key that names the file, such as `partition.file`, and `name`
    is its last part, such as `file`.
    """
    found = dict(document)
    for key in keys:
        found = _with_file(found, key.split("."), (), changed)
    return found


def files_named(document: Mapping[str, Any], keys: Iterable[str]) -> dict[str, str]:
    """Return the path of each file that an experiment's document names under one of `keys`, by its full key."""
    found: dict[str, str] = {}

    def noted(section: Section, name: str, key: str) -> Section:
        found[key] = section[name]
        return section

    with_files(document, keys, noted)
    return found


def _with_file(node: Any, rest: list[str], path: tuple[str, ...], changed: Callable[..., Section]) -> Any:
    name, *deeper = rest
    if name == "*" and isinstance(node, list):
        return [_with_file(each, deeper, (*path, str(index)), changed) for index, each in enumerate(node)]
    if not isinstance(node, dict):
        return node
    if not deeper:
        return changed(node, name, ".".join((*path, name))) if isinstance(node.get(name), str) else node
    names = node if name == "*" else {name} & node.keys()
    return {**node, **{each: _with_file(node[each], deeper, (*path, str(each)), changed) for each in names}}
