"""The user's own code in an experiment: the SHA-256 of each file, which is part of the run's id.

A command adds the digests of the files on its machine. Each process then checks the files that it has.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.sections import PLUGIN
from fedstrata.own_files import own_files

SECTIONS = ("data", "model", "architectures", "task", "method")


def with_digests(experiment: Experiment) -> Experiment:
    """Return the experiment with the digest of each file of own code that is on this machine. If the experiment has
    digests already, check them. Raises the errors of `check_code`.
    """
    if experiment.code:
        check_code(experiment)
        return experiment
    return experiment.model_copy(update={"code": {key: _sha256(path) for key, path in _files(experiment).items()}})


def check_code(experiment: Experiment, sections: Iterable[str] = SECTIONS) -> None:
    """Check that the files of own code on this machine are those of the run. `sections` name the code to check.

    Raises:
        ExperimentError: a file has changed since the run began.
        PluginError: another module hides an own file.
    """
    if not experiment.code:  # no own code, or the run began without a command
        return
    for key, path in _files(experiment, sections).items():
        wanted, found = experiment.code.get(key), _sha256(path)
        if wanted not in {None, found}:
            raise ExperimentError(
                f"{path} has changed since the run began: its SHA-256 begins with {found[:12]}, and the run's with "
                f"{wanted:.12}; restore the file, or begin a new run"
            )


def changed_code(before: Experiment, now: Experiment) -> list[str] | None:
    """Return the files of own code that differ between two experiments. If anything else differs, return None. A file
    that is not on this machine does not differ.
    """
    same = {**before.code, **now.code}
    if before.model_copy(update={"code": same}).digest != now.model_copy(update={"code": same}).digest:
        return None
    return sorted(key for key in now.code if now.code[key] != before.code.get(key))


def _files(experiment: Experiment, sections: Iterable[str] = SECTIONS) -> dict[str, Path]:
    document = experiment.model_dump(mode="json", by_alias=True)
    modules = {text.partition(":")[0] for section in sections for text in _own_names(document[section])}
    return {key: path for module in sorted(modules) for key, path in own_files(module).items()}


def _own_names(node: Any) -> Iterator[str]:
    """Yield each text in a section that may name own code, such as `net:Net`."""
    if isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            yield from _own_names(child)
    elif isinstance(node, str) and PLUGIN.match(node):
        yield node


def _sha256(path: Path) -> str:
    """Return the digest of a file of code. Both kinds of line ends have the same digest."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
