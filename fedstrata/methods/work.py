"""The argument and the result of a method on a device."""

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
Arrays = Mapping[str, Array]  # named small arrays of float32, float64 or int64
Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Hold the loss and the metrics of a model as sums over examples."""

    loss_sum: float
    """Sum of the task's loss."""
    sums: tuple[float, ...]
    """The task's other sums in its order; the number of hits, for a classification."""
    num_examples: int
    """Number of examples."""

    @property
    def loss(self) -> float:
        """Mean loss; infinite if there are no examples."""
        return self.loss_sum / self.num_examples if self.num_examples else float("inf")


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """Hold the result of a local training."""

    weights: Flat
    """Weights, shape (size,)."""
    train_loss: float
    """Mean loss of the examples that the training saw."""
    steps: int
    """Number of steps."""
    learning_rate: float
    """Learning rate of the steps."""
    measured: Measurement | None = None
    """Measurement of the first weights on held-out examples, if this round is measured."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """Hold a device's result of a round."""

    weights: Flat
    """Weights. Only tensors of channels that travel are sent; the other tensors stay on the device."""
    train_loss: float
    """Mean loss of the examples that the training saw."""
    measured: Measurement | None = None
    """Measurement, at the beginning of the round, of the model that the device would use."""
    measured_received: Measurement | None = None
    """Measurement of the received model, if the device would use another model."""
    personal: Mapping[str, Array] = field(default_factory=dict)
    """Arrays that the device keeps for the next round, in addition to its own layers."""
    tables: Mapping[str, Array] = field(default_factory=dict)
    """Tables of the method's channels, by name."""

    @classmethod
    def of(cls, trained: Trained) -> "Outcome":
        """Return the outcome of one training, without further results."""
        return cls(weights=trained.weights, train_loss=trained.train_loss, measured=trained.measured)

    @classmethod
    def of_received(cls, trained: Trained, *, used: Measurement | None, personal: Arrays | None = None) -> "Outcome":
        """Return the outcome of a device that trains the received model and uses another model. `used` is the
        measurement of the used model, and `personal` is the state that the device keeps.
        """
        return replace(cls.of(trained), measured=used, measured_received=trained.measured, personal=personal or {})


@dataclass(frozen=True)
class Pull:
    """Correct a gradient by a pull towards other weights: the gradient of mu / 2 · ‖w − to‖²."""

    mu: float
    """Strength μ of the pull."""

    def __call__(self, gradient: "torch.Tensor", weights: "torch.Tensor", to: "torch.Tensor") -> "torch.Tensor":
        """Return the corrected gradient. All tensors have one shape."""
        return gradient.add_(weights, alpha=self.mu).add_(to, alpha=-self.mu)


class Steps(Protocol):
    """Let the code of a method take each local step of a training, in a function for `Work.compute`.

    Vectors are torch tensors with the layout `model.trainable`, float32 of shape (size,).
    """

    @property
    def weights(self) -> "torch.Tensor":
        """A copy of the weights after the steps so far."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the experiment's optimiser in this round."""

    def batches(self, stream: int | None = None) -> Iterator[Any]:
        """Yield the batch of each local step of the experiment. Another number `stream` draws other batches."""

    def gradient(self, weights: "torch.Tensor", batch: Any) -> "torch.Tensor":
        """Return the gradient of a batch's mean loss at any weights. Clocks and energy count the batch's examples."""

    def move(self, gradient: "torch.Tensor") -> None:
        """Move the weights by a step of the experiment's optimiser with this gradient."""

    def trained(self) -> Trained:
        """Return the result of the steps so far. Its loss is the mean over all gradients."""


class Work(Protocol):
    """Give a method the data, models and arithmetic of a device. Vectors have the layout of the device's model."""

    model: "Model"
    """Model of the device."""
    examples: "Examples"
    """Training examples of the device."""
    held_out: "Examples"
    """Examples of the device to measure on, never to train on."""
    device_index: int
    """Index of the device."""
    seed: int
    """Seed of the experiment."""
    lps_round: int
    """LPS round, counted from 0; -1 before training."""
    received: Sequence[Flat]
    """Received models, of the device's cluster or of several, with the device's own layers in them."""
    offered: Sequence[int]
    """Number of the cluster of each received model."""
    noted: dict[str, Any]
    """Notes of `answer` for `local` in the same round; empty if the device was restarted since."""
    trained: Flat
    """Weights after training."""
    told: Arrays
    """Arrays that the GPS sends to all devices with this round's models."""
    update: Flat
    """After training: trained minus received weights, for the channels that travel."""
    personal: Arrays
    """Arrays that an earlier `Outcome` kept."""

    @property
    def start(self) -> Flat:
        """The received model of the device's cluster; before training, the initial weights."""

    @property
    def tables(self) -> Arrays:
        """Tables of the method's channels by name; none before training."""

    @property
    def noise(self) -> "Noise":
        """Source of noise for answers. Raises ExperimentError if the experiment has no noise."""

    @property
    def public(self) -> "PublicData":
        """Public examples. Raises ExperimentError without public examples."""

    async def train(
        self, start: Flat, *, correct: Callable[..., "torch.Tensor"] | None = None, beside: tuple[Flat, ...] = (),
        stream: int = 0, epochs: int | None = None, on: "Examples | None" = None,
        targets: Array | None = None, only: Sequence[str] | None = None,
    ) -> Trained:  # fmt: skip
        """Train from the weights `start` on the device's examples, or on the examples `on`.

        `correct(gradient, weights, *beside)` returns the gradient for the optimiser, elementwise. For a second training
        in the same round, set another number `stream`, so that it draws other random numbers. `epochs` replaces the
        number of epochs in the experiment. With `targets`, float32 of shape (n, num_classes), the model learns these
        distributions in place of labels. `only` names the tensors that may change; all others keep their values, even
        with weight decay.
        """

    def steps(self, start: Flat, *, stream: int = 0) -> Steps:
        """Return a training that begins with the weights `start`, and in which the method takes each local step. For a
        second training in the same round, set another number `stream`, so that it draws other random numbers.
        """

    async def measure(self, weights: Flat, *, on_own: bool = False, on: "Examples | None" = None) -> Measurement:
        """Measure weights on the held-out examples, on the device's training examples (`on_own`), or on the examples
        `on`.
        """

    async def outputs(self, weights: Flat, inputs: Array) -> Array:
        """Return the outputs for inputs of shape (n, *input_shape), float32 of shape (n, num_classes)."""

    async def compute(self, arithmetic: Callable[[], Made], *, trained_examples: int = 0) -> Made:
        """Return the result of `arithmetic`. The devices of a process compute one after another on one thread.

        `trained_examples` is the number of examples in the computation, with repetitions. Clocks and energy treat them
        like examples in `train`.
        """

    async def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Return the result of `make`. It is called only once, and the result is kept until the process ends."""
