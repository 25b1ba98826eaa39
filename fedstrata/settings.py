"""The sections of an experiment file, each checked by itself; `fedstrata.experiment` has the whole.

The names of keys are the names of the fields below.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Encoding = Literal["float32", "float16", "bfloat16", "int8"]
PLUGIN = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
DATASETS = ("digits", "fashion-mnist", "folder")
MODELS = ("mlp", "cnn")
METHODS = ("one_shot", "random", "oracle")
FEATURE_MAPS = ("raw",)
MAX_DEVICES = 100_000


class Settings(BaseModel):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)


def _named(value: str, known: Sequence[str], what: str) -> str:
    if value in known or PLUGIN.match(value):
        return value
    raise ValueError(f"no {what} is called {value!r}; choose {', '.join(known)}, or your own as module:function")


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
    feature_dim: int | None = Field(default=None, ge=1, le=1 << 20)  # d of an own Φ; the servers need it without data
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

    @model_validator(mode="after")
    def _described(self) -> Self:
        is_own = ":" in self.features
        if is_own and self.feature_dim is None:
            raise ValueError(f"features {self.features}: say feature_dim, how many features it gives an example")
        if not is_own and self.feature_dim is not None:
            raise ValueError(f"features {self.features} are as many as an example has values; leave feature_dim out")
        return self


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
    evaluate_every: int = Field(default=1, ge=1)  # global rounds; the final model is measured in any case
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

    def is_measured(self, global_round: int) -> bool:
        """Whether devices measure the models that they receive in a global round, counted from 0."""
        return global_round % self.evaluate_every == 0

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
