"""The types of a method's work on a device: `Work` is the argument of `Method.local`, and `Outcome` is its result."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from numpy.typing import NDArray

from fedstrata.tensors.layout import Flat

if TYPE_CHECKING:
    import torch

    from fedstrata.datasets import Examples
    from fedstrata.models import Model
    from fedstrata.noise import Noise
    from fedstrata.partitions import PublicData

Array = NDArray[Any]
Arrays = Mapping[str, Array]  # small arrays by name, of float32, float64 or int64
Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Hold the loss and the metrics of a model as sums over examples, so that measurements of several devices can be
    added.
    """

    loss_sum: float
    """Sum of the loss over examples."""
    sums: tuple[float, ...]
    """Sums from which the task computes its metrics, in the task's order. For a classification, the number of correct
    answers.
    """
    num_examples: int
    """Number of examples."""

    @property
    def loss(self) -> float:
        """Mean loss. It is infinite if there are no examples."""
        return self.loss_sum / self.num_examples if self.num_examples else float("inf")


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """Hold the result of a local training."""

    weights: Flat
    """Weights, shape (size,)."""
    train_loss: float
    """Mean loss of the examples that the training saw."""
    steps: int
    """Number of local steps."""
    learning_rate: float
    """Learning rate of these steps."""
    measured: Measurement | None = None
    """Measurement, on held-out examples, of the weights with which the training began; None if this round is not
    measured.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """Hold the result of a device's work in an LPS round."""

    weights: Flat
    """Weights after the round. The device sends only the tensors of channels with another reach than `DEVICE`, and
    keeps the other tensors.
    """
    train_loss: float
    """Mean loss of the examples that the training saw."""
    measured: Measurement | None = None
    """Measurement, at the beginning of the round, of the model that the device uses; None if the round is not measured.
    """
    measured_received: Measurement | None = None
    """Measurement of the received model, if the device uses another model."""
    personal: Mapping[str, Array] = field(default_factory=dict)
    """Arrays that the device keeps for its next round, in addition to layers that never leave it."""
    tables: Mapping[str, Array] = field(default_factory=dict)
    """New values of the tables in the method's channels, by name."""

    @classmethod
    def of(cls, trained: Trained) -> "Outcome":
        """Return the outcome of a device that does nothing but this training."""
        return cls(weights=trained.weights, train_loss=trained.train_loss, measured=trained.measured)

    @classmethod
    def of_received(cls, trained: Trained, *, used: Measurement | None, personal: Arrays | None = None) -> "Outcome":
        """Return the outcome of a device that trains the received model but uses another model. `used` is the
        measurement of the model in use, and `personal` is the state that the device keeps.
        """
        return replace(cls.of(trained), measured=used, measured_received=trained.measured, personal=personal or {})


@dataclass(frozen=True)
class Pull:
    """Correct a gradient by a pull towards the weights `to`: add the gradient of mu / 2 · ‖w − to‖²."""

    mu: float
    """Strength μ of the pull."""

    def __call__(self, gradient: "torch.Tensor", weights: "torch.Tensor", to: "torch.Tensor") -> "torch.Tensor":
        """Return the corrected gradient. All tensors have the same shape."""
        return gradient.add_(weights, alpha=self.mu).add_(to, alpha=-self.mu)


@dataclass(frozen=True, kw_only=True, eq=False)
class ForwardPass:
    """Hold what a model computes for a batch, as torch tensors."""

    features: "torch.Tensor"
    """Inputs of the model's last layer, shape (n, width)."""
    outputs: "torch.Tensor"
    """Outputs of the model, shape (n, num_classes)."""
    targets: "torch.Tensor"
    """Targets of the batch, shape (n,)."""


Objective = Callable[["torch.Tensor", ForwardPass], "torch.Tensor"]  # (mean loss, forward pass) → scalar


class Steps(Protocol):
    """Give a method control over each local step of a training. The method calls these functions inside a function that
    it passes to `Work.compute`.

    All vectors are torch tensors with the layout `model.trainable`, float32, of shape (size,).
    """

    @property
    def weights(self) -> "torch.Tensor":
        """A copy of the weights after the steps so far."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the experiment's optimiser in this round."""

    def batches(self, number: int | None = None) -> Iterator[Any]:
        """Yield a batch for each local step that the experiment file sets. A batch is a tuple: the tensor of inputs,
        further inputs by name, and the tensor of targets. `number` is not a count: another `number` gives another
        random order of the examples.
        """

    def gradient(self, weights: "torch.Tensor", batch: Any, objective: Objective | None = None) -> "torch.Tensor":
        """Return the gradient of a batch's mean loss at these weights. Each call counts the batch's examples as
        trained, so a clock adds computing time for them.

        With `objective`, return the gradient of `objective(loss, forward_pass)` instead of the gradient of the mean
        loss. Then the model's last layer must be a dense layer.
        """

    def features(self, weights: Flat) -> Callable[[Any], "torch.Tensor"]:
        """Return a function that takes a batch and returns its features, shape (n, width). Features are the inputs of
        the last layer of the complete model `weights`. Features have no gradient, and are computed without dropout. A
        clock adds no time for them.
        """

    def move(self, gradient: "torch.Tensor") -> None:
        """Move the weights by a step of the experiment's optimiser with this gradient."""

    def trained(self) -> Trained:
        """Return the result of the steps so far. Its `train_loss` is the mean over all calls of `gradient`."""


class Work(Protocol):
    """Give a method access to the data, the models and the arithmetic of a device. Vectors have the layout of the
    device's model.
    """

    model: "Model"
    """Model of the device."""
    examples: "Examples"
    """Training examples of the device."""
    held_out: "Examples"
    """Examples of the device on which models are measured, never trained."""
    device_index: int
    """Index of the device."""
    seed: int
    """Seed of the experiment."""
    lps_round: int
    """LPS round, counted from 0; -1 before training."""
    received: Sequence[Flat]
    """Received models: of the device's cluster, or of several clusters. Layers that never leave the device have the
    device's own values.
    """
    offered: Sequence[int]
    """The cluster number of each received model."""
    noted: dict[str, Any]
    """Values that `answer` can leave for `local` in the same round. They are lost if the device's process restarts in
    between.
    """
    trained: Flat
    """Weights after training, for answers to a question at `Moment.TRAINED`."""
    told: Arrays
    """Arrays that the GPS sends to all devices with this round's models (`Plan.told`)."""
    update: Flat
    """Update, for answers to a question at `Moment.TRAINED`: trained minus received weights, without tensors that never
    leave the device.
    """
    personal: Arrays
    """Arrays in `personal` of the device's last `Outcome`."""

    @property
    def start(self) -> Flat:
        """The received model of the device's cluster. Before training, it is the initial weights."""

    @property
    def tables(self) -> Arrays:
        """Tables by name: tensors of the method in addition to the model's. Before training there are no tables."""

    @property
    def noise(self) -> "Noise":
        """Source of noise for answers. Raises ExperimentError if the experiment has no section `privacy`."""

    @property
    def public(self) -> "PublicData":
        """Public examples. Raises ExperimentError if the experiment has no public examples."""

    async def train(
        self, start: Flat, *, correct: Callable[..., "torch.Tensor"] | None = None, beside: tuple[Flat, ...] = (),
        number: int = 0, epochs: int | None = None, on: "Examples | None" = None,
        targets: Array | None = None, only: Sequence[str] | None = None,
    ) -> Trained:  # fmt: skip
        """Train from the weights `start` on the device's examples, or on the examples `on`.

        `correct(gradient, weights, *beside)` must be elementwise, and returns the corrected gradient for the optimiser.
        For a second training in the same round, set another `number`, so that the training draws other random
        numbers. `epochs` replaces the number of epochs in the experiment. With `targets`, float32 of shape (n,
        num_classes), the model learns these distributions in place of labels. `only` names the tensors that may change.
        All other tensors keep their values, even with weight decay.
        """

    def steps(self, start: Flat, *, number: int = 0) -> Steps:
        """Begin a training from the weights `start`. The method itself takes each local step. For a second training in
        the same round, set another `number`, so that the training draws other random numbers.
        """

    async def measure(self, weights: Flat, *, on_own: bool = False, on: "Examples | None" = None) -> Measurement:
        """Measure weights on the device's held-out examples. With `on_own`, measure them on its training examples
        instead, or with `on`, on the given examples.
        """

    async def outputs(self, weights: Flat, inputs: Array) -> Array:
        """Return the model's outputs with these weights, float32 of shape (n, num_classes). Inputs have shape (n,
        *input_shape).
        """

    async def features(self, weights: Flat, inputs: Array) -> Array:
        """Return the inputs of the model's last layer with these weights, float32 of shape (n, width). Inputs have
        shape (n, *input_shape). The last layer must be a dense layer.
        """

    async def compute(self, arithmetic: Callable[[], Made], *, trained_examples: int = 0) -> Made:
        """Call `arithmetic` and return its result. All devices of a process compute on the same thread, one after
        another.

        `trained_examples` is the number of examples that the computation uses, with repetitions. A clock adds as much
        computing time for them as for the same number of examples in `train`.
        """

    async def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Return the result of `make`. `make` is called only once per `name`, and the result is kept until the process
        ends.
        """
