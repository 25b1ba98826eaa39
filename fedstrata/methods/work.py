"""What a method is given at a device, and what it gives back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from numpy.typing import NDArray

from fedstrata.tensors.layout import Flat

if TYPE_CHECKING:
    import torch

    from fedstrata.datasets import Examples, Pixels
    from fedstrata.models import Model
    from fedstrata.noise import Noise
    from fedstrata.partitions import PublicData

Array = NDArray[Any]
Arrays = Mapping[str, Array]  # named small arrays of float32, float64 or int64
Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Sums over examples: cross-entropy, hits, and of how many."""

    loss_sum: float
    correct: int
    num_examples: int

    @property
    def loss(self) -> float:
        """The mean cross-entropy; infinite over no example."""
        return self.loss_sum / self.num_examples if self.num_examples else float("inf")


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """What a local training gave: the weights, shape (size,), the mean loss of the examples that it saw, and what the
    weights that it began from do on held-out examples, where this round is measured."""

    weights: Flat
    train_loss: float
    measured: Measurement | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """A round's result at a device. Of `weights` the channels that travel leave it; the others stay."""

    weights: Flat
    train_loss: float
    measured: Measurement | None = None  # of what the device would use as the round began
    measured_received: Measurement | None = None  # of what it received, where that is something else
    personal: Mapping[str, Array] = field(default_factory=dict)  # beside its own layers, kept for the next round
    tables: Mapping[str, Array] = field(default_factory=dict)  # those of the method's channels, by name

    @classmethod
    def of(cls, trained: Trained) -> "Outcome":
        """The outcome of one training and nothing else."""
        return cls(weights=trained.weights, train_loss=trained.train_loss, measured=trained.measured)


@dataclass(frozen=True)
class Pull:
    """Corrects a gradient by a pull of strength `mu` towards other weights: that of mu / 2 · ‖w − to‖²."""

    mu: float

    def __call__(self, gradient: "torch.Tensor", weights: "torch.Tensor", to: "torch.Tensor") -> "torch.Tensor":
        """The corrected gradient; all of one shape."""
        return gradient.add_(weights, alpha=self.mu).add_(to, alpha=-self.mu)


class Work(Protocol):
    """A device's data and means, given to whatever a method does there. Vectors have the layout of its model."""

    model: "Model"
    examples: "Examples | Pixels"  # its own, to train on
    held_out: "Examples | Pixels"  # its own, to measure on and never to train on
    device_index: int
    seed: int
    lps_round: int  # counted from 0; -1 before training
    received: Sequence[Flat]  # the model of every cluster, or of its own alone, with the device's own layers put in
    offered: Sequence[int]  # the clusters, by number, whose models these are
    noted: dict[str, Any]  # what `answer` keeps for `local` in the same round; empty where the device has begun anew
    trained: Flat  # once trained: the weights
    told: Arrays  # what the GPS has told all devices with this round's models
    update: Flat  # once trained: trained minus received, of what travels
    personal: Arrays  # what an earlier round's Outcome kept

    @property
    def start(self) -> Flat:
        """The model received of its own cluster; before training, the initial weights."""

    @property
    def tables(self) -> Arrays:
        """By name, the tables of the method's channels: received with `start`, or its own; none before training."""

    @property
    def noise(self) -> "Noise":
        """Whence noise for what the device releases comes. Raises ExperimentError where nothing is noised."""

    @property
    def public(self) -> "PublicData":
        """The examples that belong to nobody. Raises ExperimentError where there are none."""

    async def train(
        self, start: Flat, *, correct: Callable[..., "torch.Tensor"] | None = None, beside: tuple[Flat, ...] = (),
        stream: int = 0, epochs: int | None = None, on: "Examples | Pixels | None" = None,
        targets: Array | None = None,
    ) -> Trained:  # fmt: skip
        """Train on the device's examples, or on those given as `on`, from some weights on.

        `correct(gradient, weights, *beside)` gives what the optimiser takes for the gradient, elementwise. A round's
        second training takes another `stream` of random numbers. `epochs` stands in for what the experiment says.
        With `targets`, float32 of shape (n, num_classes), each example is to be given this distribution and not its
        label.
        """

    async def measure(
        self, weights: Flat, *, on_own: bool = False, on: "Examples | Pixels | None" = None
    ) -> Measurement:
        """What weights do on the held-out examples, on those that the device trains on, or on those given as `on`."""

    async def outputs(self, weights: Flat, inputs: Array) -> Array:
        """What weights say of inputs (n, *input_shape) before the softmax, float32 of shape (n, num_classes)."""

    async def compute(self, arithmetic: Callable[[], Made], *, trained_examples: int = 0) -> Made:
        """Return some arithmetic's result, computed on the one thread on which the devices of a process train in turn.

        A training of the method's own says how many examples it goes through, each as often as it does: the clock takes
        them for as many of `train`.
        """

    async def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Some arithmetic's result, made where it is first asked for and kept while the process lives."""
