"""The experiment file: one YAML that says everything a run is a function of.

`load_experiment` reads, checks and resolves it; unknown keys and nonsense raise `ExperimentError` with the
key, the value and what is allowed. What each section may say is in `fedstrata.settings`; here are the whole file,
what its sections must have in common, and what follows from them.
"""

import hashlib
from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from fedstrata.errors import ExperimentError
from fedstrata.faults import Fault, KillFault, PauseFault
from fedstrata.settings import (
    DATASETS,
    METHODS,
    MODELS,
    DataSettings,
    Deadlines,
    DirichletPartition,
    Encoding,
    IidPartition,
    Links,
    LinkSettings,
    LocalPartition,
    MethodSettings,
    ModelSettings,
    Partition,
    Schedule,
    Settings,
    SgdSettings,
    Task,
    TaskPartition,
    TierDeadline,
    TrainingSettings,
)

__all__ = [
    "DATASETS",
    "METHODS",
    "MODELS",
    "DataSettings",
    "Deadlines",
    "DirichletPartition",
    "Encoding",
    "Experiment",
    "IidPartition",
    "LinkSettings",
    "Links",
    "LocalPartition",
    "MethodSettings",
    "ModelSettings",
    "Partition",
    "Schedule",
    "SgdSettings",
    "Task",
    "TaskPartition",
    "TierDeadline",
    "TrainingSettings",
    "load_experiment",
    "parse_experiment",
]


class Experiment(Settings):
    """All a run is a function of."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")
    seed: int = Field(default=0, ge=0, lt=2**63)
    data: DataSettings = DataSettings()
    partition: Partition
    model: ModelSettings = ModelSettings()
    method: MethodSettings = MethodSettings()
    training: TrainingSettings = TrainingSettings()
    links: Links = Links()
    deadlines: Deadlines = Deadlines()
    faults: tuple[Fault, ...] = ()  # what goes wrong on purpose; no part of the digest

    @field_validator("method", mode="before")
    @classmethod
    def _method_by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        devices, clusters = self.device_count, self.method.clusters
        if clusters != "auto" and clusters > devices:
            raise ValueError(f"method.clusters is {clusters}, more than the {devices} devices; lower it")
        if clusters != "auto" and devices > self.method.exact_up_to and clusters > self.method.landmarks:
            raise ValueError(f"method.clusters is {clusters}, more than method.landmarks {self.method.landmarks}")
        if self.method.name == "oracle" and not isinstance(self.partition, TaskPartition):
            raise ValueError("method oracle needs partition.kind tasks: only there are the true clusters known")
        if self.method.name == "random" and clusters == "auto" and not isinstance(self.partition, TaskPartition):
            raise ValueError("method random needs a number in method.clusters where the partition has no tasks")
        if isinstance(self.partition, LocalPartition) != (self.data.name == "folder"):
            raise ValueError("data.name folder and partition.kind local go together: each device has its own folder")
        return self

    @model_validator(mode="after")
    def _faults_hit_something(self) -> Self:
        known = {"gps", *self.device_ids()}
        for fault in self.faults:
            if isinstance(fault, KillFault | PauseFault) and not fault.process.startswith("lps-"):
                _member(fault.process, known)
        return self

    @property
    def device_count(self) -> int:
        return self.partition.device_count

    def device_ids(self) -> list[str]:
        """The ids in index order: `device-000` …, or the names that a local partition gives."""
        if isinstance(self.partition, LocalPartition):
            return list(self.partition.names)
        width = max(3, len(str(self.device_count - 1)))
        return [f"device-{index:0{width}d}" for index in range(self.device_count)]

    def task_of_devices(self) -> list[str] | None:
        """The true task of each device by index; None where the partition has no tasks."""
        if not isinstance(self.partition, TaskPartition):
            return None
        return [task.name for task in self.partition.tasks for _ in range(task.devices)]

    def to_yaml(self) -> str:
        """The resolved file: every key with its value, in a fixed order."""
        return yaml.safe_dump(self.model_dump(mode="json", by_alias=True), sort_keys=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, whose digest is its own."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("digest", None)
        return copy

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the resolved file, without faults and without what only says where data lies on this machine."""
        resolved = self.model_dump(mode="json", by_alias=True)
        del resolved["faults"]
        for place in ("folder", "download"):
            del resolved["data"][place]
        return hashlib.sha256(yaml.safe_dump(resolved).encode()).hexdigest()

    @property
    def run_id(self) -> str:
        """The same for every process that was given the same experiment."""
        return f"{self.name}-{self.digest[:12]}"


def load_experiment(path: Path, overrides: Sequence[str] = (), seed: int | None = None) -> Experiment:
    """Read an experiment file, apply `key.path=value` overrides and check the result.

    Raises:
        ExperimentError: the file is missing, is not YAML, or says something that is not allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"cannot read the experiment file {path}: {error}") from None
    return parse_experiment(text, overrides=overrides, seed=seed, where=str(path))


def parse_experiment(
    text: str, *, overrides: Sequence[str] = (), seed: int | None = None, where: str = "experiment"
) -> Experiment:
    """The experiment that a YAML text describes. Raises ExperimentError as `load_experiment` does."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ExperimentError(f"{where} is not YAML: {reason}") from None
    if not isinstance(document, dict):
        raise ExperimentError(f"{where} must be a mapping of keys to values, not {type(document).__name__}")
    for override in overrides:
        _override(document, override)
    if seed is not None:
        document["seed"] = seed
    try:
        return Experiment.model_validate(document)
    except ValidationError as error:
        raise ExperimentError(f"{where}: {_one_line(error)}") from None


def _override(document: dict[str, Any], override: str) -> None:
    """Set one `key.path=value`; the value is read as YAML."""
    path, separator, value = override.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise ExperimentError(f"--set takes key=value, for instance training.global_rounds=3, not {override!r}")
    node: Any = document
    for key in keys[:-1]:
        if isinstance(node, list):
            node = _list_item(node, key, override)
        else:
            child = node.get(key)
            node[key] = {"name": child} if isinstance(child, str) else child if child is not None else {}
            node = node[key]
        if not isinstance(node, (dict, list)):
            raise ExperimentError(f"--set {override}: {key} holds a value, not further keys")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ExperimentError(f"--set {override}: the value is not YAML") from None
    if isinstance(node, list):
        node[node.index(_list_item(node, keys[-1], override))] = parsed
    else:
        node[keys[-1]] = parsed


def _list_item(items: list[Any], key: str, override: str) -> Any:
    if not key.isdecimal() or int(key) >= len(items):
        raise ExperimentError(f"--set {override}: {key} must be a number from 0 to {len(items) - 1}")
    return items[int(key)]


def _one_line(error: ValidationError) -> str:
    """The first problem as `key: what was wrong`, with the value and what is allowed."""
    first = error.errors()[0]
    # pydantic puts a union's branch in the location; the file's reader knows only its own keys
    tags = {
        "tasks",
        "dirichlet",
        "iid",
        "local",
        "constrained-int",
        "int",
        "literal['auto']",
        "kill",
        "pause",
        "cut",
        "slow",
    }
    parts = [str(part) for part in first["loc"]]
    key = ".".join(part for i, part in enumerate(parts) if not (part in tags and i > 0)) or "experiment"
    if parts[:2] == ["partition", "tasks"] and len(parts) > 2:
        key = ".".join(["partition", *parts[2:]])
    if first["type"] == "extra_forbidden":
        return f"{key}: unknown key; see docs/experiment.md for the keys allowed here"
    message = first["msg"].removeprefix("Value error, ")
    shown = "" if first["type"] in {"missing", "value_error"} else f" (got {first['input']!r:.80})"
    rest = len(error.errors()) - 1
    return f"{key}: {message}{shown}" + (f"; and {rest} more" if rest else "")


def _member(value: str, known: Container[str]) -> None:
    if value not in known:
        raise ValueError(f"faults: no process is called {value!r}; say gps, lps-0 …, or a device such as device-000")
