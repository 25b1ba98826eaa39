"""The main sections of an experiment file. Each section checks its own values, and `fedstrata.experiment` combines the
sections.

The fields of the classes below have the names of the keys in the file.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    SerializeAsAny,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from fedstrata.experiment.descriptions import descriptions
from fedstrata.experiment.error_lines import nearest
from fedstrata.experiment.quantities import DURATION, DeviceList, Duration

Encoding = Literal["float32", "float16", "bfloat16", "int8"]
PLUGIN = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
DATASETS = ("digits", "fcube", "synthetic", "fashion-mnist", "emnist", "cifar-10", "cifar-100", "svhn", "folder")
MODELS = ("mlp", "cnn", "lenet5", "convnet", "dropout_cnn", "resnet18")
MAX_DEVICES = 100_000
MOST_ROUNDS = 10**9  # of each kind, so messages hold the number of an LPS round in 64 bits
MOST_LAYERS = 1000  # of a built-in model
Channels = Annotated[int, Field(ge=1, le=4096)]
Share = Annotated[float, Field(ge=0, lt=1)]
SmallerPart = Annotated[float, Field(gt=0, lt=0.5)]


class Settings(BaseModel):
    """Define the base class of all sections of the experiment file. Sections cannot change, and refuse unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_bool_in_place_of_a_number(cls, values: Any) -> Any:
        """Refuse true and false in place of a number, which pydantic would take for 1 and 0."""
        for name, field in cls.model_fields.items() if isinstance(values, Mapping) else ():
            value = values.get(field.alias or name)
            members = value if isinstance(value, list | tuple) else [value]
            if any(isinstance(each, bool) for each in members) and not _takes_bool(field.annotation):
                raise ValueError(f"{field.alias or name} is true or false; give a number or a text")
        return values

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


def _takes_bool(annotation: Any) -> bool:
    """Return whether a field with this annotation may be true or false, or is a section. For a section, pydantic itself
    refuses true and false.
    """
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return is_section or annotation in (bool, Any, JsonValue) or any(map(_takes_bool, get_args(annotation)))


def known_or_own(value: str, known: Sequence[str], what: str) -> str:
    """Check that a name is known, or has the form `module:function` for code of the user. Return the name. Raises
    ValueError for any other name. `what` is the word for the named thing in the error message, such as "model".
    """
    if value in known or PLUGIN.match(value):
        return value
    choose = f"choose {', '.join(known)}, or your own as module:function"
    raise ValueError(f"no {what} is called {value!r}; {nearest(value, known)}{choose}")


class SyntheticSettings(Settings):
    """Hold the settings of the data set `synthetic`, in which each device draws its own distribution of examples."""

    alpha: float = Field(default=1.0, ge=0, le=100)
    """α: each device draws the mean of its true model's weights with this standard deviation."""
    beta: float = Field(default=1.0, ge=0, le=100)
    """β: each device draws the centre of its mean inputs with this standard deviation."""
    num_devices: int = Field(default=30, ge=1, le=10_000)
    """Number of devices; `partition` needs the same number."""
    alike: bool = False
    """If true, all devices have the same true model, and mean inputs of 0, so α and β change nothing."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Seed of the random numbers that generate the data; without this key it is the experiment's seed."""


class DataSettings(Settings):
    """Name the data set and the folder of its files. For data of your own, also describe their shapes, labels and
    columns.
    """

    name: str = "digits"
    """Data set: `digits`, `fcube`, `synthetic`, `fashion-mnist`, `emnist`, `cifar-10`, `cifar-100`, `svhn`, `folder`
    for your own files, or own code as `module:function`.
    """
    folder: Path | None = None
    """Folder of the data set's files, or for downloads, relative to the current folder; without this key the data set's
    usual folders.
    """
    download: bool = False
    """If true, missing files are downloaded from the publisher, then checked by SHA-256."""
    input_shape: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    """Shape of one example, such as `[1, 28, 28]`; required with `folder` and own code, and refused otherwise."""
    num_classes: int | None = Field(default=None, ge=2)
    """With `folder` and own code: number of labels, or of values of a whole-number target; without this key targets are
    any numbers.
    """
    classes: tuple[str, ...] | None = Field(default=None, min_length=2)
    """Names of the labels, in place of `num_classes`, if the target of a `folder` is text; the first name is label 0.
    """
    target_shape: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Shape of one target; `[]` for one number."""
    inputs: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Columns or arrays of a `folder` that are the input, in order; without this key `x`, or all that have no other
    role.
    """
    target: tuple[str, ...] | None = None
    """Columns, or the array, of a `folder` that are the target; without this key `y`, if it exists."""
    more: tuple[str, ...] = ()
    """Columns or arrays of a `folder` that your own model gets as further inputs, by name."""
    columns: tuple[str, ...] = ()
    """Further columns of a `folder`, such as the user, by which a partition can divide the data; they have few
    different values.
    """
    orientations: tuple[Literal[0, 90, 180, 270], ...] | None = Field(default=None, min_length=1)
    """Rotations in degrees, among which the images of each label are divided; each label in each rotation becomes a
    separate label.
    """

    synthetic: SyntheticSettings | None = None
    """Distribution of the data set `synthetic`; without this key α and β are 1, and there are 30 devices."""

    def drawn(self, seed: int) -> Self:
        """Return the settings with the seed from which the data set `synthetic` is drawn: the section's own seed or,
        without it, `seed`. So two experiments with the same examples get equal settings. For other data sets, return
        the settings unchanged.
        """
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
            raise ValueError(f"orientations {list(value)} have one value twice; remove it once")
        return value

    @field_validator("target", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _described(self) -> Self:
        own = self.name == "folder" or ":" in self.name
        if own and self.input_shape is None:
            raise ValueError(f"{self.name} needs input_shape, because the servers do not have the data; add it")
        if not own and (self.input_shape is not None or self.num_classes is not None or self.target_shape):
            raise ValueError(
                f"{self.name} has fixed shapes and classes; remove input_shape, num_classes and target_shape"
            )
        if self.synthetic is not None and self.name != "synthetic":
            raise ValueError(f"the key synthetic is for data.name synthetic, not for {self.name}; remove it")
        if self.classes is not None and self.num_classes is not None:
            raise ValueError("classes replaces num_classes; remove one of them")
        roles = [*(self.inputs or ()), *(self.target or ()), *self.more, *self.columns]
        if self.name != "folder" and (roles or self.classes):
            raise ValueError(
                f"inputs, target, more, columns and classes are for data.name folder, not for {self.name}; remove them"
            )
        if twice := {name for name in roles if roles.count(name) > 1}:
            raise ValueError(
                f"a column can have only one role, and {', '.join(sorted(twice))} is named twice; remove one"
            )
        return self


class ModelSettings(Settings):
    """Name the model, its options, and the layers that all clusters share."""

    name: str = "mlp"
    """Model: `mlp`, `cnn`, `lenet5`, `convnet`, `dropout_cnn`, `resnet18`, or own code: a torch module as
    `module:Class`, or `module:function`.
    """
    options: Mapping[str, JsonValue] = {}
    """Arguments of your own class `module:Class`, by name."""
    hidden: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] | None = Field(default=None, max_length=MOST_LAYERS)
    """Widths of the hidden dense layers; without this key each model has its default."""
    channels: tuple[Channels, ...] | None = Field(default=None, min_length=1, max_length=MOST_LAYERS)
    """Output channels of each convolution of a `convnet`; without this key `[32, 64, 64, 64, 64]`."""
    activation: Literal["relu", "softmax"] | None = None
    """Function after each convolution of a `convnet`: `relu`, or `softmax` over the channels of a pixel; without this
    key `relu`.
    """
    shared: tuple[str, ...] | None = None
    """Names of the layers that all clusters share through the GPS, such as `[fc1]`; `[]` shares none, `null` takes the
    model's default.
    """
    buffers: Literal["average", "device", "freeze"] = "average"
    """Treatment of the statistics of batch normalisation: `average` averages them like weights, `device` keeps each
    device's, `freeze` keeps the first values.
    """
    freeze: tuple[str, ...] = ()
    """Layers or tensors of your own module that are neither trained nor sent, such as `[backbone]` or `["*.norm"]`."""
    weights: Path | None = None
    """File with weights of your own module, in the format safetensors: values of frozen layers, and first values of
    other layers.
    """
    weights_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of the file `weights`, a part of the run's id; it is computed when the experiment is read."""

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        return known_or_own(value, MODELS, "model")

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        of_modules = [key for key in ("options", "freeze", "weights") if getattr(self, key)]
        if self.name in MODELS and (of_modules or self.buffers != "average"):
            key = of_modules[0] if of_modules else "buffers"
            raise ValueError(f"{key} is only for your own torch modules, not for {self.name}; remove it")
        is_fixed = self.name in MODELS and self.name != "convnet"
        if is_fixed and (self.channels is not None or self.activation is not None):
            raise ValueError(f"{self.name} has no keys channels and activation; remove them, or choose convnet")
        return self


class ArchitectureSettings(Settings):
    """Give some devices another model than `model`, from a given global round on."""

    devices: DeviceList
    """Indexes of the devices, with ranges: `[0, 2, "5-9"]`."""
    from_global_round: int = Field(default=1, ge=1)
    """Global round in which the devices begin to have this model, counted from 1."""
    model: ModelSettings
    """Model of the devices, with the same keys as the section `model`."""


class MethodSettings(Settings):
    """Hold the name of the method. Each method declares its options in a subclass of this class."""

    name: str
    """Name of a built-in method, or own code as `module:Class`."""


class RuleSettings(Settings):
    """Hold the name of a rule. Each rule declares its options in a subclass of this class."""

    name: str = "mean"
    """Name of a built-in rule, or own code as `module:Class`."""


class AggregationSettings(Settings):
    """Name the rules by which parents combine the updates of their children."""

    lps: SerializeAsAny[RuleSettings] = RuleSettings()
    """Rule of an LPS for its devices' updates: a built-in rule, or own code as `module:Class`."""
    gps: SerializeAsAny[RuleSettings] = RuleSettings()
    """Rule of the GPS for the LPSs' updates."""


class TaskSettings(Settings):
    """Hold the name of the task. Each task declares its options in a subclass of this class."""

    name: str = "classification"
    """Name of a built-in task, or own code as `module:Class`."""


class DeviceSettings(Settings):
    """Choose the processor that devices use."""

    processor: str = "cpu"
    """Processor on which devices train: `cpu`, `cuda` for a GPU of NVIDIA, or own code as `module:Class`."""


class TopologySettings(Settings):
    """Assign devices to LPSs. Without this section, each cluster has its own LPS.

    If only `lps`, the number of LPSs, is given, device i has LPS i modulo `lps`. With `devices`, the file lists the
    device indexes of each LPS.
    """

    lps: int = Field(ge=1, le=10_000)
    """Number of LPSs; device i has LPS i modulo `lps`, so with 2 LPSs, `lps-0` has devices 0, 2, 4 and so on."""
    devices: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...] | None = None
    """Device indexes of each LPS, such as `[[0, 1, 2], [3, 4]]`, in place of an even division."""

    @model_validator(mode="after")
    def _one_list_each(self) -> Self:
        if self.devices is None:
            return self
        placed = [index for devices in self.devices for index in devices]
        if len(self.devices) != self.lps or not all(self.devices):
            raise ValueError(
                f"devices must have {self.lps} lists, as lps is {self.lps}, and each list at least one device"
            )
        if len(set(placed)) != len(placed):
            raise ValueError("a device is in two lists, and each device has one LPS; remove it from one list")
        return self

    def home_of(self, device_index: int) -> int:
        """Return the number of a device's LPS."""
        if self.devices is None:
            return device_index % self.lps
        return next(number for number, devices in enumerate(self.devices) if device_index in devices)


class StepSchedule(Settings):
    """Lower the learning rate by a factor at regular intervals. If the factor is 1, the rate stays constant."""

    name: Literal["step"] = "step"
    """`step` multiplies the learning rate by `decay` each time that `every` global rounds have passed."""
    decay: float = Field(default=1.0, gt=0, le=1)
    """Factor of each decay: the rate in global round g, counted from 0, is `learning_rate * decay ** (g // every)`."""
    every: int = Field(default=1, ge=1)
    """Number of global rounds between two decays."""
    warm_up_rounds: int = Field(default=0, ge=0)
    """Number w of warm-up rounds: round g, from 0, has (g + 1) / (w + 1) of the rate; then the schedule begins."""


class CosineSchedule(Settings):
    """Lower the learning rate along half a cosine until the last global round."""

    name: Literal["cosine"]
    """`cosine` multiplies the learning rate in round g of T by floor + (1 − floor) · (1 + cos(π g / T)) / 2."""
    floor: float = Field(default=0.0, ge=0, lt=1)
    """Share of the learning rate to which it falls."""
    warm_up_rounds: int = Field(default=0, ge=0)
    """Number w of warm-up rounds: round g, from 0, has (g + 1) / (w + 1) of the rate; then the schedule begins."""


class _LocalOptimiser(Settings):
    """Hold the settings that all optimisers of devices have in common."""

    schedule: Annotated[StepSchedule | CosineSchedule, Field(discriminator="name")] = StepSchedule()
    """Change of the learning rate over global rounds."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest L2 norm of a step's gradient over all tensors; longer gradients are scaled down to it, and without this
    key none are.
    """
    state: Literal["fresh", "kept"] = "fresh"
    """`fresh` sets moments and velocities to 0 at the start of every LPS round; `kept` keeps them on the device between
    rounds.
    """

    @property
    def is_plain(self) -> bool:
        """True if the optimiser is SGD and uses nothing except momentum, weight decay and a schedule."""
        return False

    @field_validator("schedule", mode="before")
    @classmethod
    def _step_unless_named(cls, value: Any) -> Any:
        return _named(value, "step")


class SgdSettings(_LocalOptimiser):
    """Hold the settings of stochastic gradient descent, as in torch.optim.SGD."""

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
        """True unless the settings use Nesterov momentum, gradient clipping or `state: kept`."""
        return not self.nesterov and self.clip_norm is None and self.state == "fresh"

    @model_validator(mode="after")
    def _has_momentum(self) -> Self:
        if not self.momentum and (self.nesterov or self.state == "kept"):
            key = "nesterov: true" if self.nesterov else "state: kept"
            raise ValueError(f"{key} has no effect with momentum 0; set momentum, such as 0.9, or remove {key}")
        return self


class LocalAdamSettings(_LocalOptimiser):
    """Hold the settings of Adam, as in torch.optim.Adam."""

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
    """Hold the settings of Adam with decoupled weight decay, as in torch.optim.AdamW."""

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
    """Hold the settings of RMSprop, as in torch.optim.RMSprop."""

    name: Literal["rmsprop"]
    """`rmsprop` is `torch.optim.RMSprop`."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate before the schedule."""
    alpha: Share = 0.99
    """Share of the former mean of squared gradients that is kept in each step."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Number added to the root of the mean of squared gradients."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay, added to the gradient."""


class LocalAdagradSettings(_LocalOptimiser):
    """Hold the settings of Adagrad, as in torch.optim.Adagrad."""

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
    """Return the value of a key such as `optimiser`, which is a mapping with a name. If the mapping has no name, add
    the name `default`.
    """
    return {"name": default, **value} if isinstance(value, Mapping) else value


class NoOptimiserSettings(Settings):
    """Choose no optimiser: the server adds the mean update to its model, as in FedAvg."""

    name: Literal["none"]
    """`none` adds the mean update to the model, as FedAvg does."""


class MomentumSettings(Settings):
    """Hold the settings of FedAvgM (Hsu et al. 2019): v ← momentum · v + update. Then learning_rate · v is added to the
    model.
    """

    name: Literal["momentum"]
    """`momentum` is FedAvgM: v ← momentum · v + update, and learning_rate · v is added to the model."""
    learning_rate: float = Field(default=1.0, gt=0)
    """Learning rate of the server."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the former v that is kept."""


class AdamSettings(Settings):
    """Hold the settings of FedAdam (Reddi et al. 2021) without bias correction. The paper tunes the learning rate per
    data set.
    """

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


class YogiSettings(Settings):
    """Hold the settings of FedYogi (Reddi et al. 2021): FedAdam with a second moment that changes more slowly."""

    name: Literal["yogi"]
    """`yogi` is FedYogi: learning_rate · m / (√v + tau) is added to the model."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of the server; a good one depends on the data set."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Share kept of the first moment: m ← beta1 · m + (1 − beta1) · update."""
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """The second moment is v ← v − (1 − beta2) · update² · sign(v − update²)."""
    tau: float = Field(default=1e-3, gt=0)
    """Number added to √v; v starts at tau²."""


class AdagradSettings(Settings):
    """Hold the settings of FedAdagrad (Reddi et al. 2021): FedAdam with a second moment that only grows."""

    name: Literal["adagrad"]
    """`adagrad` is FedAdagrad: learning_rate · m / (√v + tau) is added to the model, and v ← v + update²."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of the server; a good one depends on the data set."""
    beta1: float = Field(default=0.0, ge=0, lt=1)
    """Share kept of the first moment: m ← beta1 · m + (1 − beta1) · update."""
    tau: float = Field(default=1e-3, gt=0)
    """Number added to √v; v starts at tau²."""


AdaptiveSettings = AdamSettings | YogiSettings | AdagradSettings
ServerOptimiserSettings = Annotated[
    NoOptimiserSettings | MomentumSettings | AdaptiveSettings, Field(discriminator="name")
]


class DynamicSettings(Settings):
    """Choose FedDyn's step of a server (Acar et al. 2021). Methods choose it in their code. The experiment file cannot
    name it.
    """

    name: Literal["dynamic"] = "dynamic"
    """`dynamic`: v ← v + share · update, and the update plus v is added to the model."""


AnyServerOptimiser = NoOptimiserSettings | MomentumSettings | AdaptiveSettings | DynamicSettings


def _number_or_share(value: Any) -> Any:
    """Return a number of devices, or a share of them. Raises ValueError for any other value."""
    if (isinstance(value, int) and value >= 1) or (isinstance(value, float) and 0 < value <= 1):
        return value
    raise ValueError(f"{value!r} must be a number of devices (1 or more), or a share above 0.0 and at most 1.0")


class EvenWeights(Settings):
    """Weigh each update by its number of examples."""

    kind: Literal["even"] = "even"
    """Kind of the weights."""


class CatchUpWeights(Settings):
    """Weigh each update by its number of examples, multiplied by the number of models that the parent has made since
    the device's last update.
    """

    kind: Literal["catch_up"]
    """Kind of the weights."""
    most: int = Field(default=16, ge=1, le=1024)
    """Largest factor."""


class PolynomialWeights(Settings):
    """Weigh each update by its number of examples, multiplied by (1 + staleness)^-exponent."""

    kind: Literal["polynomial"]
    """Kind of the weights."""
    exponent: float = Field(default=0.5, gt=0, le=8)
    """Exponent of the discount."""


UpdateWeights = Annotated[EvenWeights | CatchUpWeights | PolynomialWeights, Field(discriminator="kind")]


class SynchronousSettings(Settings):
    """Let the parent wait for the updates of all children of a round."""

    kind: Literal["synchronous"] = "synchronous"
    """Kind of the rounds."""

    sums_examples: ClassVar[bool] = True  # whether a weight is a number of examples


class AsynchronousSettings(Settings):
    """Set the weights of updates that began from different models, and how many devices work at once."""

    weights: UpdateWeights = EvenWeights()
    """Factors of the updates' weights."""
    concurrency: int | float | None = None
    """Largest number of devices at work at once, or a share of the parent's devices; by default all."""

    @field_validator("concurrency", mode="before")
    @classmethod
    def _some_or_all(cls, value: Any) -> Any:
        return None if value is None else _number_or_share(value)

    @property
    def sums_examples(self) -> bool:
        """True if the weight of an update is its number of examples."""
        return isinstance(self.weights, EvenWeights)


class TimedSettings(AsynchronousSettings):
    """Let the parent make its next model after a fixed time."""

    kind: Literal["timed"]
    """Kind of the rounds."""
    period: Duration | Literal["auto"] = "auto"
    """Time after which the next model is made; `auto` is a sixth of the longest work of a device in the first round."""
    step: float = Field(default=2.0, gt=0, le=100)
    """Step ρ: the mean update is multiplied by at most ρ times the share of the examples that are in it."""

    @field_validator("period", mode="before")
    @classmethod
    def _auto_or_positive(cls, value: Any) -> Any:
        if value != "auto" and not DURATION.parsed(value):
            raise ValueError(f"{value!r} must be longer than 0s, or auto")
        return value


class BufferedSettings(AsynchronousSettings):
    """Let the parent make its next model from a fixed number of updates."""

    kind: Literal["buffered"]
    """Kind of the rounds."""
    buffer: int | float = 10
    """Number of updates, or a share of the parent's devices such as `0.1`, rounded up."""
    step: float = Field(default=1.0, gt=0, le=100)
    """Step ρ: the mean update is multiplied by at most ρ times the share of the examples that are in it."""

    @field_validator("buffer", mode="before")
    @classmethod
    def _number_or_share(cls, value: Any) -> Any:
        return _number_or_share(value)


RoundKind = Annotated[SynchronousSettings | TimedSettings | BufferedSettings, Field(discriminator="kind")]


class RoundsSettings(Settings):
    """Set when a parent makes its next model."""

    lps: RoundKind = SynchronousSettings()
    """Rounds between an LPS and its devices."""

    @property
    def asynchronous(self) -> TimedSettings | BufferedSettings | None:
        """The settings of asynchronous rounds; None if an LPS waits for all its devices."""
        return None if isinstance(self.lps, SynchronousSettings) else self.lps


class TrainingSettings(Settings):
    """Hold the numbers of rounds, the local training, and the optimisers. Either `local_epochs` or `local_steps` is
    given.
    """

    global_rounds: int = Field(default=5, ge=1, le=MOST_ROUNDS)
    """Number of rounds at the GPS; in each, clusters exchange their shared layers once."""
    lps_rounds_per_global_round: int = Field(default=2, ge=1, le=MOST_ROUNDS)
    """Number of rounds in a cluster, or at an LPS, per global round."""
    local_epochs: int | None = Field(default=None, ge=1, le=MOST_ROUNDS)
    """Number of passes over a device's data per LPS round; it is 1 if neither this key nor `local_steps` is given."""
    local_steps: int | None = Field(default=None, ge=1, le=MOST_ROUNDS)
    """Number of batches per LPS round, in place of `local_epochs`."""
    batch_size: int = Field(default=32, ge=1)
    """Number of examples in a batch; the last batch of an epoch may be smaller."""
    last_batch: Literal["kept", "joined", "dropped"] = "kept"
    """Treatment of a smaller last batch: it is `kept`, `dropped`, or, if it has one example, `joined` to the batch
    before it.
    """
    evaluate_every: int = Field(default=1, ge=1)
    """Number n: devices measure the received model in global rounds 1, n + 1, 2n + 1, …, and always the final model."""
    evaluate_all_every: int | None = Field(default=None, ge=1)
    """Number n: all devices, asked or not, measure the models after global rounds n, 2n, …; without this key only the
    final model.
    """
    participation: int | float | None = None
    """Devices that an LPS asks per round: a number such as `10`, or a share such as `0.1`, rounded up; without this key
    all.
    """
    rounds: RoundsSettings = RoundsSettings()
    """Kind of the rounds: whether a parent waits for all its children."""
    optimiser: Annotated[LocalOptimiserSettings, Field(discriminator="name")] = SgdSettings()
    """Optimiser of devices; without a name it is `sgd`."""
    lps_optimiser: ServerOptimiserSettings = NoOptimiserSettings(name="none")
    """Optimiser with which an LPS applies the mean update of an LPS round to its model."""
    gps_optimiser: ServerOptimiserSettings = NoOptimiserSettings(name="none")
    """Optimiser with which the GPS applies the mean update of a global round to the shared layers."""

    @field_validator("optimiser", mode="before")
    @classmethod
    def _sgd_unless_named(cls, value: Any) -> Any:
        return _named(value, "sgd")

    @field_validator("participation", mode="before")
    @classmethod
    def _some_or_all(cls, value: Any) -> Any:
        return None if value is None else _number_or_share(value)

    @model_validator(mode="before")
    @classmethod
    def _one_epoch_unless_told(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and all(value.get(key) is None for key in ("local_epochs", "local_steps")):
            return {**value, "local_epochs": 1}
        return value

    @model_validator(mode="after")
    def _either(self) -> Self:
        if self.local_epochs is not None and self.local_steps is not None:
            raise ValueError("local_epochs and local_steps exclude each other; remove one")
        return self

    def is_measured(self, global_round: int) -> bool:
        """Return whether devices measure the models that they receive in this global round. The first round has the
        number 0.
        """
        return global_round % self.evaluate_every == 0

    def batches(self, examples: int) -> int:
        """Return the number of batches in an epoch of a device with this many examples."""
        full, rest = divmod(examples, self.batch_size)
        if full and (self.last_batch == "dropped" or (self.last_batch == "joined" and rest == 1)):
            return full
        return full + (rest > 0)

    def epoch_examples(self, examples: int) -> int:
        """Return the number of examples on which a device that has `examples` examples trains in an epoch."""
        if self.last_batch != "dropped":
            return examples
        return min(examples, self.batches(examples) * self.batch_size)

    def is_measured_by_all(self, global_rounds: int) -> bool:
        """Return whether all devices fetch and measure the model after this many global rounds. For the final model,
        which all devices measure anyway, the result does not matter.
        """
        every = self.evaluate_all_every
        return every is not None and global_rounds > 0 and global_rounds % every == 0

    def steps(self, examples: int) -> int:
        """Return the number of local steps that a device with this many examples takes in an LPS round."""
        return self.local_steps or (self.local_epochs or 1) * self.batches(examples)

    def trained_examples(self, examples: int) -> int:
        """Return the number of examples on which a device with this many examples trains in an LPS round.

        If the device trains on an example several times, each time is counted.
        """
        return self.examples_of_steps(self.steps(examples), examples)

    def examples_of_steps(self, steps: int, examples: int) -> int:
        """Return the number of examples in the batches of `steps` steps, for a device that has `examples` examples. The
        last batch of an epoch can have another size.
        """
        epochs, rest = divmod(steps, self.batches(examples))
        return epochs * self.epoch_examples(examples) + rest * self.batch_size

    def asks_all(self, devices: int) -> bool:
        """Return whether an LPS with at most this many devices asks each of them in every round."""
        share = self.participation
        return share is None or (share == 1.0 if isinstance(share, float) else share >= devices)

    @property
    def lps_rounds(self) -> int:
        """The number of LPS rounds in the whole run."""
        return self.global_rounds * self.lps_rounds_per_global_round


class TierDeadline(Settings):
    """Set how long a parent waits for its children. Without `deadline_s` the parent waits for all children, so results
    do not depend on time.
    """

    deadline_s: float | None = Field(default=None, gt=0)
    """Seconds after which the parent continues without the children that have not answered; without this key it waits
    for all children.
    """
    quorum_ratio: float = Field(default=1.0, gt=0, le=1)
    """Share of the children that must answer by the deadline; if fewer answer, the run stops."""

    def quorum(self, children: int) -> int:
        """Return the number of children that must report: the share `quorum_ratio` of `children`, rounded up, and at
        least one.
        """
        return max(1, math.ceil(self.quorum_ratio * children - 1e-9))


class Bounds(Settings):
    """Limit the values that a device may report. A device that reports a larger value is excluded from the run."""

    max_examples: int | None = Field(default=None, ge=1)
    """Largest number of training examples of a device; without this key the number of the largest device in the
    partition.
    """
    max_held_out: int | None = Field(default=None, ge=0)
    """Largest number of examples on which a device measures; without this key a million."""
    max_update_norm: float | None = Field(default=None, gt=0)
    """Largest L2 norm of an update over all layers; without this key any norm that the servers' sums can hold."""


class Deadlines(Settings):
    """Hold the deadlines. `enrolment` limits the time until devices have enrolled and answered the first question. Then
    a second period of this length begins, which limits all other answers before training. `lps` limits LPS rounds, and
    `gps` global rounds.
    """

    enrolment: TierDeadline = TierDeadline()
    """Deadline for devices to enrol and to answer the first question, and again for the other questions before
    training.
    """
    lps: TierDeadline = TierDeadline()
    """Deadline of an LPS round: for the answers to a question, and again for the updates."""
    gps: TierDeadline = TierDeadline()
    """Deadline of a global round; if an LPS sends nothing for this time, another LPS adopts its clusters."""
