"""The sections of an experiment file, each checked by itself; `fedstrata.experiment` has the whole.

The names of keys are the names of the fields below.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedstrata.experiment.messages import nearest
from fedstrata.experiment.quantities import DeviceList

Encoding = Literal["float32", "float16", "bfloat16", "int8"]
PLUGIN = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
DATASETS = ("digits", "fashion-mnist", "emnist", "cifar-10", "cifar-100", "svhn", "folder")
MODELS = ("mlp", "cnn", "lenet5", "convnet", "dropout_cnn", "resnet18")
MAX_DEVICES = 100_000
Channels = Annotated[int, Field(ge=1, le=4096)]


class Settings(BaseModel):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)


def known_or_own(value: str, known: Sequence[str], what: str) -> str:
    """The name, if it is known or names own code as `module:function`. Raises ValueError for any other."""
    if value in known or PLUGIN.match(value):
        return value
    choose = f"choose {', '.join(known)}, or your own as module:function"
    raise ValueError(f"no {what} is called {value!r}; {nearest(value, known)}{choose}")


class DataSettings(Settings):
    """Which data set, and where its files are."""

    name: str = "digits"
    folder: Path | None = None  # where the files are, or are downloaded to; None: the data set's usual places
    download: bool = False  # fetch what is missing, checked by hash
    input_shape: tuple[Annotated[int, Field(ge=1)], ...] | None = None  # of one example; own data says it here
    num_classes: int | None = Field(default=None, ge=2)
    # degrees: images are shared out among these, each with labels of its own; None: they stay as they are
    orientations: tuple[Literal[0, 90, 180, 270], ...] | None = Field(default=None, min_length=1)

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        return known_or_own(value, DATASETS, "data set")

    @field_validator("orientations")
    @classmethod
    def _distinct(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value and len(set(value)) != len(value):
            raise ValueError(f"orientations differ from each other, and {list(value)} has one twice")
        return value

    @model_validator(mode="after")
    def _described(self) -> Self:
        own = self.name == "folder" or ":" in self.name
        if own and (self.input_shape is None or self.num_classes is None):
            raise ValueError(f"{self.name}: say input_shape and num_classes, which the servers need without the data")
        if not own and (self.input_shape is not None or self.num_classes is not None):
            raise ValueError(f"{self.name} has an input_shape and num_classes of its own; leave them out")
        return self


class ModelSettings(Settings):
    """The model and which of its layers all clusters share; `shared: null` takes the model's own default."""

    name: str = "mlp"
    hidden: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] | None = None  # dense widths; null: its own
    channels: tuple[Channels, ...] | None = Field(default=None, min_length=1)  # of a convnet's convolutions
    activation: Literal["relu", "softmax"] | None = None  # after each convolution of a convnet; None: relu
    shared: tuple[str, ...] | None = None  # names of the shared layers, e.g. [fc1]; [] shares none

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        return known_or_own(value, MODELS, "model")

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        is_fixed = self.name in MODELS and self.name != "convnet"
        if is_fixed and (self.channels is not None or self.activation is not None):
            raise ValueError(f"{self.name} has channels and activations of its own; leave them out, or choose convnet")
        return self


class ArchitectureSettings(Settings):
    """Devices that have another model than `model`, from some global round on."""

    devices: DeviceList
    from_global_round: int = Field(default=1, ge=1)  # counted from 1
    model: ModelSettings


class MethodSettings(Settings):
    """The method by name; what else it takes is said by its own options, a subclass of this."""

    name: str


class TopologySettings(Settings):
    """Which devices hang on which LPS, where that does not follow from their clusters.

    Give `lps` alone for so many LPSs with devices dealt out in index order, as evenly as can be; or `devices`, the
    device indexes of each.
    """

    lps: int = Field(ge=1, le=10_000)
    devices: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...] | None = None

    @model_validator(mode="after")
    def _one_list_each(self) -> Self:
        if self.devices is None:
            return self
        placed = [index for devices in self.devices for index in devices]
        if len(self.devices) != self.lps or not all(self.devices):
            raise ValueError(f"devices has {len(self.devices)} lists, each with a device, for lps {self.lps}")
        if len(set(placed)) != len(placed):
            raise ValueError("a device hangs on one LPS, and here one stands twice")
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


def examples_of_steps(steps: int, examples: int, batch_size: int) -> int:
    """How many examples so many batches hold, where the last batch of each epoch is what is left of it."""
    epochs, rest = divmod(steps, -(-examples // batch_size))
    return epochs * examples + rest * batch_size


class NoOptimiserSettings(Settings):
    """A server adds the mean update to its model: FedAvg."""

    name: Literal["none"]


class MomentumSettings(Settings):
    """FedAvgM (Hsu et al. 2019): v ← momentum · v + update; model + learning_rate · v."""

    name: Literal["momentum"]
    learning_rate: float = Field(default=1.0, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)


class AdamSettings(Settings):
    """FedAdam (Reddi et al. 2021), without bias correction; the paper tunes the learning rate for every data set."""

    name: Literal["adam"]
    learning_rate: float = Field(default=0.01, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.99, ge=0, lt=1)
    tau: float = Field(default=1e-3, gt=0)


ServerOptimiserSettings = Annotated[NoOptimiserSettings | MomentumSettings | AdamSettings, Field(discriminator="name")]


class TrainingSettings(Settings):
    """Rounds and the local optimiser. One of `local_epochs` and `local_steps` is given."""

    global_rounds: int = Field(default=5, ge=1)
    lps_rounds_per_global_round: int = Field(default=2, ge=1)
    local_epochs: int | None = Field(default=None, ge=1)
    local_steps: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=32, ge=1)
    evaluate_every: int = Field(default=1, ge=1)  # global rounds; the final model is measured in any case
    participation: int | float | None = None  # devices that an LPS asks in a round: a number, or a share; None: all
    optimiser: SgdSettings = SgdSettings()
    lps_optimiser: ServerOptimiserSettings = NoOptimiserSettings(name="none")  # of an LPS, every LPS round
    gps_optimiser: ServerOptimiserSettings = NoOptimiserSettings(name="none")  # of the GPS, every global round

    @field_validator("participation", mode="before")
    @classmethod
    def _number_or_share(cls, value: Any) -> Any:
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            return value
        if isinstance(value, float) and 0 < value <= 1:
            return value
        raise ValueError(f"{value!r} is neither a number of devices, 1 or more, nor a share above 0.0, at most 1.0")

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

    def trained_examples(self, examples: int) -> int:
        """How many examples a device with so many goes through in an LPS round, each as often as it does."""
        if self.local_steps is None:
            return (self.local_epochs or 1) * examples
        return examples_of_steps(self.local_steps, examples, self.batch_size)

    def asks_all(self, devices: int) -> bool:
        """Whether an LPS with up to so many devices asks each of them in every round."""
        share = self.participation
        return share is None or (share == 1.0 if isinstance(share, float) else share >= devices)

    @property
    def lps_rounds(self) -> int:
        """LPS rounds of the whole run."""
        return self.global_rounds * self.lps_rounds_per_global_round


class TierDeadline(Settings):
    """When a parent stops waiting. Without `deadline_s` it waits for all, and the result is exact."""

    deadline_s: float | None = Field(default=None, gt=0)
    quorum_ratio: float = Field(default=1.0, gt=0, le=1)  # share of the children without which the run stops

    def quorum(self, children: int) -> int:
        """How many of so many children have to be there: the share rounded up, at least one."""
        return max(1, math.ceil(self.quorum_ratio * children - 1e-9))


class Bounds(Settings):
    """What a device may claim; beyond it the device is refused for the run, by name."""

    max_examples: int | None = Field(default=None, ge=1)  # to train on; without it as many as the partition gives
    max_held_out: int | None = Field(default=None, ge=0)  # to measure on
    max_update_norm: float | None = Field(default=None, gt=0)  # L2, of an update as it is sent


MOST_MASKED = 256  # devices in a round, so that a roster with a certificate for each is one message


class SecureAggregation(Settings):
    """Updates go up under masks that cancel in the sum of a round's devices."""

    min_devices: int = Field(default=5, ge=3, le=MOST_MASKED)  # that a sum is of; a round with fewer stops the run


class Deadlines(Settings):
    """One deadline a tier: `enrolment` for profiles and again for relevance rows, then one for a round of each tier."""

    enrolment: TierDeadline = TierDeadline()
    lps: TierDeadline = TierDeadline()
    gps: TierDeadline = TierDeadline()
