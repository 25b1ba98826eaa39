"""Build the values that `fedstrata up` passes to the chart. They come from files and from the command line, or are
computed.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from emulator.estimates.sizing import LPS_PROCESS_BYTES, MIB, device_memory, lps_memory
from fedstrata.datasets import Dataset
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.methods import make_method
from fedstrata.process.regular_files import check_regular
from fedstrata.streams.homes import lps_known

CODE_BYTES_MAX = 1_000_000  # a ConfigMap holds 1 MiB
VALUES_BYTES_MAX = 4 << 20


class _Dateless(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml's is ten times as fast
    """Read YAML as Helm does: a date is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def asked_values(chart: Path, files: Sequence[Path], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values in these files and KEY=VALUE texts. Later values replace earlier values, and texts replace
    values in files.

    Raises:
        ExperimentError: a file or text cannot be read, or has an invalid form.
    """
    defaults = load_values(chart / "values.yaml") if overrides else {}
    return merge_values([*map(load_values, files), *(value_of(text, defaults) for text in overrides)])


def with_lps_count(values: dict[str, Any], asked: Mapping[str, Any], experiment: Experiment) -> dict[str, Any]:
    """Return `values` with a new lps.replicas, the number of LPSs at the start of the run. The number is the user's (in
    `asked`, the values for this `fedstrata up`) or the number that the experiment needs. If only the GPS can decide on
    the number, lps.replicas is null.

    Raises:
        ExperimentError: the user's number contradicts the experiment.
    """
    if not isinstance(values.get("lps", {}), dict):
        return values  # the chart will refuse these values
    known = lps_known(experiment, make_method(experiment)) or None
    given = _at(asked, ["lps", "replicas"])
    if given is not None and known not in (None, given):
        raise ExperimentError(
            f"lps.replicas is {given}, but experiment {experiment.name} needs {known}; leave lps.replicas out, or "
            "change the experiment"
        )
    return merge_values([values, {"lps": {"replicas": known if given is None else given}}])


def with_memory(
    values: dict[str, Any], asked: Mapping[str, Any], experiment: Experiment, dataset: Dataset | None
) -> dict[str, Any]:
    """Return `values`, and add the memory that an experiment's pods need. If the user has given the memory of pods for
    this `fedstrata up` (`asked`), the user's numbers are used. `dataset` is None if it is not on this machine.

    Raises:
        PluginError: the experiment's own code is not on this machine.
        FedstrataError: the model cannot be constructed.
    """
    if not all(isinstance(values.get(tier, {}), dict) for tier in ("lps", "device")):
        return values  # the chart will refuse these values
    of_pods, of_lps = device_memory(experiment, dataset), LPS_PROCESS_BYTES + lps_memory(experiment)
    given_number = _at(values, ["device", "devicesPerPod"])
    devices = given_number if isinstance(given_number, int) and given_number > 0 else 1
    of_device = (of_pods.of(devices) - of_pods.process) / devices  # the mean in the largest pod
    found = {
        "device": {"memoryMi": {"pod": _mib(of_pods.process), "device": _mib(math.ceil(of_device))}},
        "lps": {"memoryMi": {"pod": _mib(of_lps)}},
    }
    given = {tier: {"memoryMi": of_tier} for tier in found if (of_tier := _at(asked, [tier, "memoryMi"]))}
    return merge_values([values, found, given])


def _mib(size: int) -> int:
    return -(-size // MIB)


def with_code(values: dict[str, Any], files: Sequence[Path]) -> dict[str, Any]:
    """Return `values` with the content of these files, which have the user's own code. The files of an earlier
    `fedstrata up` are replaced. Without files, return the values unchanged.

    Raises:
        ExperimentError: a file cannot be read, or the files are too large for a ConfigMap.
    """
    if not files:
        return values
    texts: dict[str, str] = {}
    for path in files:
        try:
            check_regular(path)
            texts[path.name] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ExperimentError(f"--code {path}: cannot be read as text: {' '.join(str(error).split())}") from None
        if [other.name for other in files].count(path.name) > 1:
            raise ExperimentError(f"--code {path}: another file has the same name; rename one of the two")
        if not path.stem.isidentifier():
            raise ExperimentError(f"--code {path}: a module's name has letters, digits and underscores; rename it")
    size = sum(len(text.encode()) for text in texts.values())
    if size > CODE_BYTES_MAX:
        raise ExperimentError(
            f"--code: {size:,} bytes are more than the {CODE_BYTES_MAX:,} that a ConfigMap holds; put the code into an "
            "image and name it with --set-value code.image=IMAGE"
        )
    return {**values, "code": {"files": texts}}


def value_of(text: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Parse KEY=VALUE, such as lps.nodeSelector.tier=edge. Return it as nested mappings, as in a values file. If the
    chart's default is a string, VALUE is a string too. Otherwise VALUE is parsed as YAML.

    Raises:
        ExperimentError: the text is not KEY=VALUE, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    path = key.split(".")
    if not equals or not all(path):
        raise ExperimentError(f"--set-value {text!r} must be KEY=VALUE, e.g. device.devicesPerPod=5")
    try:
        found: Any = value if isinstance(_at(defaults, path), str) else yaml.load(value, _Dateless)  # noqa: S506
    except yaml.YAMLError:
        raise ExperimentError(f"--set-value {text!r}: {value!r} is not YAML; put text in quotes") from None
    for part in reversed(path):
        found = {part: found}
    merged: dict[str, Any] = found
    return merged


def _at(values: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return the value at a path of keys. If a key is missing, return None."""
    for key in path:
        if not isinstance(values, Mapping):
            return None
        values = values.get(key)  # type: ignore[assignment]
    return values


def load_values(path: Path) -> dict[str, Any]:
    """Return the content of a values file. Raises ExperimentError if the file cannot be read or is no mapping."""
    try:
        check_regular(path, VALUES_BYTES_MAX)
        document = yaml.load(path.read_text(encoding="utf-8"), _Dateless) or {}  # noqa: S506
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ExperimentError(f"cannot read the values file {path}: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ExperimentError(f"{path} must be a mapping of keys to values")
    return document


def merge_values(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of several values files as one mapping, merged as Helm does. Later files replace values of
    earlier files.
    """
    merged: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            under = merged.get(key)
            both = isinstance(under, dict) and isinstance(value, dict)
            merged[key] = merge_values([under, value]) if both else value  # type: ignore[list-item]
    return merged
