"""The experiment file: one YAML that says everything a run is a function of.

`load_experiment` reads, checks and resolves it; unknown keys and nonsense raise `ExperimentError` with the
key, the value and what is allowed. The names of keys are the names of the fields below.
"""

import hashlib
import re
from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from fedstrata.errors import ExperimentError
from fedstrata.faults import Fault, KillFault, PauseFault
from fedstrata.settings import Settings

Encoding = Literal["float32", "float16", "bfloat16", "int8"]
PLUGIN = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
DATASETS = ("digits", "fashion-mnist", "folder")
MODELS = ("mlp", "cnn")
METHODS = ("one_shot", "random", "oracle")
FEATURE_MAPS = ("raw",)
MAX_DEVICES = 100_000


def _named(value: str, known: Sequence[str], what: str) -> str:
    if value in known or PLUGIN.match(value):
        return value
    raise ValueError(f"no {what} is called {value!r}; choose {', '.join(known)}, or your own as module:function")


def _member(value: str, known: Container[str]) -> None:
    if value not in known:
        raise ValueError(f"faults: no process is called {value!r}; say gps, lps-0 …, or a device such as device-000")


class DataSettings(Settings):
    """Which data set, and where its files are."""

    name: str = "digits"
    folder: Path | None = None  # where the files are, or are downloaded to; None: the data set's usual places
    download: bool = False  # fetch what is missing, checked by hash
    input_shape: tuple[Annotated[int, Field(ge=1)], ...] | None = None  # of one example; own data says it here
    num_classes: int | None = Field(default=None, ge=2)

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        return _named(value, DATASETS, "data set")

    @model_validator(mode="after")
    def _described(self) -> Self:
        own = self.name == "folder" or ":" in self.name
        if own and (self.input_shape is None or self.num_classes is None):
            raise ValueError(f"{self.name}: say input_shape and num_classes, which the servers need without the data")
        if not own and (self.input_shape is not None or self.num_classes is not None):
            raise ValueError(f"{self.name} has an input_shape and num_classes of its own; leave them out")
        return self


class Task(Settings):
    """A learning task: the labels it is about and the devices that learn it."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")
    labels: tuple[int, ...] = Field(min_length=1)
    devices: int = Field(ge=1, le=MAX_DEVICES)
    examples_per_device: int = Field(ge=1)

    @field_validator("labels")
    @classmethod
    def _labels(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value) or min(value) < 0:
            raise ValueError(f"labels are distinct numbers from 0 up, not {list(value)}")
        return value


class TaskPartition(Settings):
    """Devices take most examples from their own task and a minority from the others (methods.md section 1)."""

    kind: Literal["tasks"] = "tasks"
    tasks: tuple[Task, ...] = Field(min_length=1)
    minority_ratio: float = Field(default=0.1, ge=0, lt=0.5)  # share of a device's examples from other tasks

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [task.name for task in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError(f"task names must differ, and these do not: {names}")
        labels = [label for task in self.tasks for label in task.labels]
        if len(set(labels)) != len(labels):
            raise ValueError("a label belongs to one task only")
        return self

    @property
    def device_count(self) -> int:
        return sum(task.devices for task in self.tasks)


class DirichletPartition(Settings):
    """Label skew: each device's label shares are drawn from Dirichlet(concentration)."""

    kind: Literal["dirichlet"]
    devices: int = Field(ge=1, le=MAX_DEVICES)
    examples_per_device: int = Field(ge=1)
    concentration: float = Field(default=0.5, gt=0)

    @property
    def device_count(self) -> int:
        return self.devices


class IidPartition(Settings):
    """Every device draws from all examples alike."""

    kind: Literal["iid"]
    devices: int = Field(ge=1, le=MAX_DEVICES)
    examples_per_device: int = Field(ge=1)

    @property
    def device_count(self) -> int:
        return self.devices


class LocalPartition(Settings):
    """Real boards: each device owns the whole of what its data folder holds. `names` gives each its index."""

    kind: Literal["local"]
    names: tuple[Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")], ...] = Field(min_length=1)

    @field_validator("names")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("every device has a name of its own, and here one stands twice")
        return value

    @property
    def device_count(self) -> int:
        return len(self.names)


Partition = Annotated[TaskPartition | DirichletPartition | IidPartition | LocalPartition, Field(discriminator="kind")]


class ModelSettings(Settings):
    """The model and which of its layers all clusters share; `shared: null` takes the model's own default."""

    name: str = "mlp"
    hidden: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] | None = None  # dense widths; null: its own
    shared: tuple[str, ...] | None = None  # names of the shared layers, e.g. [fc1]; [] shares none

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        return _named(value, MODELS, "model")


class MethodSettings(Settings):
    """How devices are grouped into clusters."""

    name: str = "one_shot"
    clusters: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    eigenvectors: int = Field(default=5, ge=1, le=4096)  # k, the profile's size
    features: str = "raw"  # the feature map Φ
    representatives: int = Field(default=1, ge=1)  # devices of a cluster that a late device is related to
    exact_up_to: int = Field(default=128, ge=1)  # devices; above it all are related to the landmarks only
    landmarks: int = Field(default=64, ge=2)  # how many devices are landmarks then

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        return _named(value, METHODS, "method")

    @field_validator("features")
    @classmethod
    def _known_features(cls, value: str) -> str:
        return _named(value, FEATURE_MAPS, "feature map")


class Schedule(Settings):
    """Learning rate of global round g: `rate * decay ** (g // every)`; decay 1 keeps it."""

    decay: float = Field(default=1.0, gt=0, le=1)
    every: int = Field(default=1, ge=1)


class SgdSettings(Settings):
    """Stochastic gradient descent as in torch.optim.SGD; momentum starts at zero in every LPS round."""

    learning_rate: float = Field(default=0.05, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: Schedule = Schedule()


class TrainingSettings(Settings):
    """Rounds and the local optimiser. One of `local_epochs` and `local_steps` is given."""

    global_rounds: int = Field(default=5, ge=1)
    lps_rounds_per_global_round: int = Field(default=2, ge=1)
    local_epochs: int | None = Field(default=None, ge=1)
    local_steps: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=32, ge=1)
    optimiser: SgdSettings = SgdSettings()

    @model_validator(mode="before")
    @classmethod
    def _one_epoch_unless_told(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and not value.get("local_epochs") and not value.get("local_steps"):
            return {**value, "local_epochs": 1}
        return value

    @model_validator(mode="after")
    def _either(self) -> Self:
        if self.local_epochs is not None and self.local_steps is not None:
            raise ValueError("give local_epochs or local_steps, not both")
        return self

    @property
    def lps_rounds(self) -> int:
        """LPS rounds of the whole run."""
        return self.global_rounds * self.lps_rounds_per_global_round


class LinkSettings(Settings):
    """How tensors travel on a link, down (models) and up (updates)."""

    down: Encoding = "float32"
    up: Encoding = "float32"


class Links(Settings):
    """The two links that carry models."""

    device_lps: LinkSettings = Field(default=LinkSettings(), alias="device-lps")
    lps_gps: LinkSettings = Field(default=LinkSettings(), alias="lps-gps")

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class TierDeadline(Settings):
    """When a parent stops waiting. Without `deadline_s` it waits for all, and the result is exact."""

    deadline_s: float | None = Field(default=None, gt=0)
    quorum_ratio: float = Field(default=1.0, gt=0, le=1)  # share of the children without which the run stops


class Deadlines(Settings):
    """One deadline a tier: `enrolment` for profiles and again for relevance rows, then one for a round of each tier."""

    enrolment: TierDeadline = TierDeadline()
    lps: TierDeadline = TierDeadline()
    gps: TierDeadline = TierDeadline()


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
