"""The sections of an experiment file. Each checks its own values, and `fedstrata.experiment` combines them.

The names of keys are the names of the fields below.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from fedstrata.experiment.descriptions import descriptions
from fedstrata.experiment.messages import nearest
from fedstrata.experiment.quantities import DeviceList

Encoding = Literal["float32", "float16", "bfloat16", "int8"]
PLUGIN = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
DATASETS = ("digits", "fcube", "synthetic", "fashion-mnist", "emnist", "cifar-10", "cifar-100", "svhn", "folder")
MODELS = ("mlp", "cnn", "lenet5", "convnet", "dropout_cnn", "resnet18")
MAX_DEVICES = 100_000
Channels = Annotated[int, Field(ge=1, le=4096)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Settings(BaseModel):
    """Define the base class of all sections of the experiment file. Sections cannot change, and refuse unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return pydantic's schema with the description of each field."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        said = descriptions(cls)
        for name, field in cls.model_fields.items():
            for key in {name, field.alias} & properties.keys():
                if name in said:
                    properties[key]["description"] = said[name]
        return schema


def known_or_own(value: str, known: Sequence[str], what: str) -> str:
    """Return the name if it is a known name, or names own code as `module:function`. Raises ValueError for
    any other name. The message calls the name a `what`, such as a method.
    """
    if value in known or PLUGIN.match(value):
        return value
    choose = f"choose {', '.join(known)}, or your own as module:function"
    raise ValueError(f"no {what} is called {value!r}; {nearest(value, known)}{choose}")


class SyntheticSettings(Settings):
    """The distribution from which the data set `synthetic` is drawn, separately for each device."""

    alpha: float = Field(default=1.0, ge=0, le=100)
    """α, the standard deviation of the mean weight of a device's true model."""
    beta: float = Field(default=1.0, ge=0, le=100)
    """β, the standard deviation of the centre of a device's mean inputs."""
    num_devices: int = Field(default=30, ge=1, le=10_000)
    """Number of devices; `partition` needs the same number."""
    alike: bool = False
    """If true, all devices have one true model and mean inputs of 0, and α and β change nothing."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Seed of the random numbers that generate the data; without this key the experiment's seed."""


class DataSettings(Settings):
    """The data set, and the folder of its files."""

    name: str = "digits"
    """`digits`, `fcube`, `synthetic`, `fashion-mnist`, `emnist`, `cifar-10`, `cifar-100`, `svhn`, `folder` for own
    files, or own code as `module:function`.
    """
    folder: Path | None = None
    """Folder with the files, or the place for downloads, relative to the command's folder; without it the data set's
    usual places are used.
    """
    download: bool = False
    """Whether missing files are downloaded from the publisher and checked by SHA-256."""
    input_shape: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    """Shape of one example, such as `[1, 28, 28]`; required with `folder` and own code, and refused otherwise."""
    num_classes: int | None = Field(default=None, ge=2)
    """Number of labels, or of values of a whole-number target, with `folder` and own code; without it targets are
    numbers of any kind.
    """
    classes: tuple[str, ...] | None = Field(default=None, min_length=2)
    """Names of the labels, if the target of a `folder` is text; the first is label 0. It takes the place of
    `num_classes`.
    """
    target_shape: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Shape of one target; `[]` for one number."""
    inputs: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Columns or arrays of a `folder` that are the input, in order; by default `x`, or all without another role."""
    target: tuple[str, ...] | None = None
    """Columns or the array of a `folder` that are the target; without it `y`, if there is one."""
    more: tuple[str, ...] = ()
    """Columns or arrays of a `folder` that an own model gets as further inputs, by name."""
    columns: tuple[str, ...] = ()
    """Columns of a `folder` with few values, numbers or text, such as the user; a partition may divide data by them."""
    orientations: tuple[Literal[0, 90, 180, 270], ...] | None = Field(default=None, min_length=1)
    """Orientations in degrees (0, 90, 180, 270), among which the images of each label are divided. Each orientation
    has labels of its own.
    """

    synthetic: SyntheticSettings | None = None
    """The distribution of `synthetic`; without this key α and β are 1, and there are 30 devices."""

    def drawn(self, seed: int) -> Self:
        """Return equal settings for equal data: `synthetic` states its seed, the present seed or else the given one."""
        law = self.synthetic or SyntheticSettings()
        if self.name != "synthetic" or law.seed is not None:
            return self
        return self.model_copy(update={"synthetic": law.model_copy(update={"seed": seed})})

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

    @field_validator("target", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _described(self) -> Self:
        own = self.name == "folder" or ":" in self.name
        if own and self.input_shape is None:
            raise ValueError(f"{self.name}: say input_shape, which the servers need without the data")
        if not own and (self.input_shape is not None or self.num_classes is not None or self.target_shape):
            raise ValueError(f"{self.name} has an input_shape and num_classes of its own; leave them out")
        if self.synthetic is not None and self.name != "synthetic":
            raise ValueError(f"synthetic is the law of data.name synthetic, not of {self.name}; leave it out")
        if self.classes is not None and self.num_classes is not None:
            raise ValueError("classes takes the place of num_classes; leave one out")
        roles = [*(self.inputs or ()), *(self.target or ()), *self.more, *self.columns]
        if self.name != "folder" and (roles or self.classes):
            raise ValueError(f"inputs, target, more, columns and classes are of data.name folder, not of {self.name}")
        if twice := {name for name in roles if roles.count(name) > 1}:
            raise ValueError(f"a column has one role, and {', '.join(sorted(twice))} is named twice")
        return self


class ModelSettings(Settings):
    """The model, and the layers that all clusters share; `shared: null` takes the model's own default."""

    name: str = "mlp"
    """`mlp`, `cnn`, `lenet5`, `convnet`, `dropout_cnn`, `resnet18`, or own code: a torch module as
    `module:Class`, or `module:function`.
    """
    options: Mapping[str, Any] = {}
    """Arguments of an own module's class, by name."""
    hidden: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] | None = None
    """Widths of the hidden dense layers; without it each model has its own."""
    channels: tuple[Channels, ...] | None = Field(default=None, min_length=1)
    """Outputs of each convolution of a `convnet`; without it `[32, 64, 64, 64, 64]`."""
    activation: Literal["relu", "softmax"] | None = None
    """Function after each convolution of a `convnet`: `relu`, or `softmax` over the channels of a pixel; without it
    `relu`.
    """
    shared: tuple[str, ...] | None = None
    """Names of the layers that all clusters share through the GPS, such as `[fc1]`; `[]` shares none, `null` takes
    the model's own.
    """
    buffers: Literal["average", "device", "freeze"] = "average"
    """Statistics of batch normalisation: `average` averages them like weights, `device` keeps them on each device,
    `freeze` keeps their first values.
    """
    freeze: tuple[str, ...] = ()
    """Layers or tensors of a module that neither train nor travel, such as `[backbone]` or `["*.norm"]`."""
    weights: Path | None = None
    """File of a module's weights in the format safetensors: values of frozen layers, and initial values of
    other layers.
    """
    weights_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of this file, part of the run's id; found when the experiment is read."""

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        return known_or_own(value, MODELS, "model")

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        of_modules = [key for key in ("options", "freeze", "weights") if getattr(self, key)]
        if self.name in MODELS and (of_modules or self.buffers != "average"):
            key = of_modules[0] if of_modules else "buffers"
            raise ValueError(f"{key} is for torch modules of your own, and {self.name} is none; leave it out")
        is_fixed = self.name in MODELS and self.name != "convnet"
        if is_fixed and (self.channels is not None or self.activation is not None):
            raise ValueError(f"{self.name} has channels and activations of its own; leave them out, or choose convnet")
        return self


class ArchitectureSettings(Settings):
    """Give the listed devices another model than `model`, from a global round on."""

    devices: DeviceList
    """Indexes of these devices, with ranges: `[0, 2, "5-9"]`."""
    from_global_round: int = Field(default=1, ge=1)
    """Global round in which the devices begin to have this model, counted from 1."""
    model: ModelSettings
    """Model of these devices, with the keys of `model`."""


class MethodSettings(Settings):
    """Name the method. The options of a method are a subclass of this."""

    name: str
    """Name of a built-in method, or own code as `module:Class`."""


class TaskSettings(Settings):
    """Name the task. The options of a task are a subclass of this."""

    name: str = "classification"
    """Name of a built-in task, or own code as `module:Class`."""


class TopologySettings(Settings):
    """Assign devices to LPSs, if their clusters do not decide the LPSs.

    With only `lps`, the number of LPSs, devices are dealt out in index order, as evenly as possible. `devices` gives
    the device indexes of each LPS instead.
    """

    lps: int = Field(ge=1, le=10_000)
    """Number of LPSs; devices are dealt out in index order, as evenly as possible."""
    devices: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...] | None = None
    """Device indexes of each LPS, such as `[[0, 1, 2], [3, 4]]`, in place of an even division."""

    @model_validator(mode="after")
    def _one_list_each(self) -> Self:
        if self.devices is None:
            return self
        placed = [index for devices in self.devices for index in devices]
        if len(self.devices) != self.lps or not all(self.devices):
            raise ValueError(f"devices has {len(self.devices)} lists, each with a device, for lps {self.lps}")
        if len(set(placed)) != len(placed):
            raise ValueError("a device has one LPS, and one is listed twice; remove it from a list")
        return self


class StepSchedule(Settings):
    """Lower the learning rate by a factor at regular intervals; with decay 1 the rate stays."""

    name: Literal["step"] = "step"
    """`step` multiplies the learning rate by `decay` after every `every` global rounds."""
    decay: float = Field(default=1.0, gt=0, le=1)
    """Factor of the learning rate: global round g has `learning_rate * decay ** (g // every)`."""
    every: int = Field(default=1, ge=1)
    """Global rounds between two decays."""
    warm_up_rounds: int = Field(default=0, ge=0)
    """Rounds w at the start with (g + 1) / (w + 1) of the rate; the schedule begins after them."""


class CosineSchedule(Settings):
    """Lower the learning rate along half a cosine until the last global round."""

    name: Literal["cosine"]
    """`cosine` multiplies the learning rate by floor + (1 − floor) · (1 + cos(π g / T)) / 2 in round g of T."""
    floor: float = Field(default=0.0, ge=0, lt=1)
    """Share of the learning rate at the end of the fall."""
    warm_up_rounds: int = Field(default=0, ge=0)
    """Rounds w at the start with (g + 1) / (w + 1) of the rate; the schedule begins after them."""


class _LocalOptimiser(Settings):
    """The settings that all optimisers of devices have in common."""

    schedule: Annotated[StepSchedule | CosineSchedule, Field(discriminator="name")] = StepSchedule()
    """The learning rate by global round."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest L2 norm of a step's gradient over all tensors; a longer gradient is scaled down. Without this key,
    gradients stay.
    """
    state: Literal["fresh", "kept"] = "fresh"
    """`fresh` begins moments and velocities at 0 in every LPS round; `kept` keeps them on the device from round to
    round.
    """

    @property
    def is_plain(self) -> bool:
        """True if the optimiser is SGD and uses no more than momentum, weight decay and a schedule."""
        return False

    @field_validator("schedule", mode="before")
    @classmethod
    def _step_unless_named(cls, value: Any) -> Any:
        return _named(value, "step")


class SgdSettings(_LocalOptimiser):
    """Stochastic gradient descent as in torch.optim.SGD."""

    name: Literal["sgd"] = "sgd"
    """`sgd` is stochastic gradient descent, `torch.optim.SGD`; it is the default."""
    learning_rate: float = Field(default=0.05, gt=0)
    """Learning rate before the schedule."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum."""
    nesterov: bool = False
    """Whether momentum is Nesterov's, as in `torch.optim.SGD`."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay, as in `torch.optim.SGD`."""

    @property
    def is_plain(self) -> bool:
        """True without Nesterov momentum, clipping and kept state."""
        return not self.nesterov and self.clip_norm is None and self.state == "fresh"

    @model_validator(mode="after")
    def _has_momentum(self) -> Self:
        if not self.momentum and (self.nesterov or self.state == "kept"):
            key = "nesterov: true" if self.nesterov else "state: kept"
            raise ValueError(f"{key} with momentum 0 does nothing; give momentum, such as 0.9, or leave it out")
        return self


class LocalAdamSettings(_LocalOptimiser):
    """Adam as in torch.optim.Adam."""

    name: Literal["adam"]
    """`adam` is `torch.optim.Adam`."""
    learning_rate: float = Field(default=0.001, gt=0)
    """Learning rate before the schedule."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Shares of the first and second moments that are kept in a step."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Number added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay, added to the gradient."""


class LocalAdamWSettings(_LocalOptimiser):
    """Adam with decoupled weight decay as in torch.optim.AdamW."""

    name: Literal["adamw"]
    """`adamw` is `torch.optim.AdamW`."""
    learning_rate: float = Field(default=0.001, gt=0)
    """Learning rate before the schedule."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Shares of the first and second moments that are kept in a step."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Number added to the root of the second moment."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay, applied to the weights in addition to the gradient's step."""


class LocalRmspropSettings(_LocalOptimiser):
    """RMSprop as in torch.optim.RMSprop."""

    name: Literal["rmsprop"]
    """`rmsprop` is `torch.optim.RMSprop`."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate before the schedule."""
    alpha: Share = 0.99
    """Share of the mean of squared gradients that is kept in a step."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Number added to the root of that mean."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay, added to the gradient."""


class LocalAdagradSettings(_LocalOptimiser):
    """Adagrad as in torch.optim.Adagrad."""

    name: Literal["adagrad"]
    """`adagrad` is `torch.optim.Adagrad`."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate before the schedule."""
    epsilon: float = Field(default=1e-10, gt=0)
    """Number added to the root of the sum of squared gradients."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay, added to the gradient."""


LocalOptimiserSettings = (
    SgdSettings | LocalAdamSettings | LocalAdamWSettings | LocalRmspropSettings | LocalAdagradSettings
)


def _named(value: Any, default: str) -> Any:
    """Return the value of a key with several forms. If the file gives no name, add the name of the default form."""
    return {"name": default, **value} if isinstance(value, Mapping) else value


def examples_of_steps(steps: int, examples: int, batch_size: int) -> int:
    """Return the number of examples in this many batches. The last batch of an epoch can be smaller."""
    epochs, rest = divmod(steps, -(-examples // batch_size))
    return epochs * examples + rest * batch_size


class NoOptimiserSettings(Settings):
    """Add the mean update to the server's model: FedAvg."""

    name: Literal["none"]
    """`none` adds the mean update to the model, as FedAvg does."""


class MomentumSettings(Settings):
    """FedAvgM (Hsu et al. 2019): v ← momentum · v + update; model + learning_rate · v."""

    name: Literal["momentum"]
    """`momentum` is FedAvgM: v ← momentum · v + update, and learning_rate · v is added to the model."""
    learning_rate: float = Field(default=1.0, gt=0)
    """Learning rate of the server."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the former v that is kept."""


class AdamSettings(Settings):
    """FedAdam (Reddi et al. 2021), without bias correction; the paper tunes the learning rate for every data set."""

    name: Literal["adam"]
    """`adam` is FedAdam without bias correction: learning_rate · m / (√v + tau) is added to the model."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of the server; a good one depends on the data set."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Share kept of the first moment: m ← beta1 · m + (1 − beta1) · update."""
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """Share kept of the second moment: v ← beta2 · v + (1 − beta2) · update²."""
    tau: float = Field(default=1e-3, gt=0)
    """Number added to √v; v starts at tau²."""


ServerOptimiserSettings = Annotated[NoOptimiserSettings | MomentumSettings | AdamSettings, Field(discriminator="name")]


class TrainingSettings(Settings):
    """Rounds and the local optimiser. Either `local_epochs` or `local_steps` is given."""

    global_rounds: int = Field(default=5, ge=1)
    """Rounds at the GPS: how often clusters exchange their shared layers."""
    lps_rounds_per_global_round: int = Field(default=2, ge=1)
    """Rounds inside a cluster, or at an LPS, per global round."""
    local_epochs: int | None = Field(default=None, ge=1)
    """Passes over a device's data per LPS round; 1 if neither this key nor `local_steps` is given."""
    local_steps: int | None = Field(default=None, ge=1)
    """Batches per LPS round, in place of epochs."""
    batch_size: int = Field(default=32, ge=1)
    """Examples in a batch; the last batch of an epoch may be smaller."""
    evaluate_every: int = Field(default=1, ge=1)
    """Devices measure the received model in every n-th global round; the final model is always measured."""
    participation: int | float | None = None
    """Devices that an LPS asks per round: a number such as `10`, or a share such as `0.1`, rounded up; all by
    default.
    """
    optimiser: Annotated[LocalOptimiserSettings, Field(discriminator="name")] = SgdSettings()
    """The optimiser of devices; without a name it is `sgd`."""
    lps_optimiser: ServerOptimiserSettings = NoOptimiserSettings(name="none")
    """The way in which an LPS applies the mean update of an LPS round."""
    gps_optimiser: ServerOptimiserSettings = NoOptimiserSettings(name="none")
    """The way in which the GPS applies the mean update of the shared layers in a global round."""

    @field_validator("optimiser", mode="before")
    @classmethod
    def _sgd_unless_named(cls, value: Any) -> Any:
        return _named(value, "sgd")

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
        """Return whether devices measure the models that they receive in a global round, counted from 0."""
        return global_round % self.evaluate_every == 0

    def steps(self, examples: int) -> int:
        """Return the number of local steps in an LPS round of a device with this many examples."""
        if self.local_steps is not None:
            return self.local_steps
        return (self.local_epochs or 1) * -(-examples // self.batch_size)

    def trained_examples(self, examples: int) -> int:
        """Return the number of examples that a device trains on in an LPS round.

        A repeated example is counted each time.
        """
        if self.local_steps is None:
            return (self.local_epochs or 1) * examples
        return examples_of_steps(self.local_steps, examples, self.batch_size)

    def asks_all(self, devices: int) -> bool:
        """Return whether an LPS with at most this many devices asks each of them in every round."""
        share = self.participation
        return share is None or (share == 1.0 if isinstance(share, float) else share >= devices)

    @property
    def lps_rounds(self) -> int:
        """The number of LPS rounds in the whole run."""
        return self.global_rounds * self.lps_rounds_per_global_round


class TierDeadline(Settings):
    """The time after which a parent stops waiting. Without `deadline_s` the parent waits for all children, and results
    do not depend on time.
    """

    deadline_s: float | None = Field(default=None, gt=0)
    """Seconds until the parent goes on without the children that have not answered; without it the parent waits for
    all.
    """
    quorum_ratio: float = Field(default=1.0, gt=0, le=1)
    """Share of the children that must answer by the deadline; with fewer the run stops."""

    def quorum(self, children: int) -> int:
        """Return how many of these children have to report: the quorum's share of them, rounded up, at least one."""
        return max(1, math.ceil(self.quorum_ratio * children - 1e-9))


class Bounds(Settings):
    """The largest values that a device may state. A device that states a larger value is excluded from the run."""

    max_examples: int | None = Field(default=None, ge=1)
    """Largest number of training examples. Without this key, the number of the largest device in the partition."""
    max_held_out: int | None = Field(default=None, ge=0)
    """Largest number of examples to measure on. Without this key, a million."""
    max_update_norm: float | None = Field(default=None, gt=0)
    """Largest L2 norm of a sent update over all layers. Without this key, any norm that the sums can hold."""


MOST_MASKED = 256  # devices in a round, so that a roster with a certificate for each is one message


class SecureAggregation(Settings):
    """Devices hide their updates under masks, which cancel in the sum of a round's devices."""

    min_devices: int = Field(default=5, ge=3, le=MOST_MASKED)
    """Fewest devices in a sum; a round with fewer stops the run."""


class Deadlines(Settings):
    """One deadline per tier. `enrolment` applies to enrolment with the first question, and again to the other
    questions. The others apply to the rounds of each tier.
    """

    enrolment: TierDeadline = TierDeadline()
    """Deadline from the start until devices have enrolled and answered the first question, and again for the other
    questions.
    """
    lps: TierDeadline = TierDeadline()
    """Deadline of an LPS round for answers, and again for updates."""
    gps: TierDeadline = TierDeadline()
    """Deadline of a global round; another LPS adopts the clusters of an LPS that stays silent for this time."""
