"""Local training: what a device does between receiving a model and answering with its own.

A result is a function of its job, to the bit: batches come from an addressed generator, arithmetic runs on one
thread (`limit_threads`), and every tensor is made by torch, so that its alignment, on which the rounding of a
matrix product may depend, is always the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from device.evaluation import Evaluation, EvaluationJob, evaluate, named_tensors
from fedstrata.datasets import Examples, Pixels
from fedstrata.errors import DataError, PayloadError
from fedstrata.experiment import SgdSettings, TrainingSettings
from fedstrata.models import Model
from fedstrata.tensors import Flat

if TYPE_CHECKING:
    from fedstrata.methods.base import LocalLoss

Indices = NDArray[np.int64]
SLAB_BATCHES = 32  # batches whose examples are gathered at once: memory does not grow with a device's data


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingJob:
    """One device's local training in one LPS round; both kinds of round count from 0."""

    model: Model
    received: Flat  # shape (model.layout.size,)
    examples: Examples | Pixels
    training: TrainingSettings
    seed: int
    device_index: int
    lps_round: int
    global_round: int
    local_loss: "LocalLoss | None" = None  # what the method minimises instead of the plain loss
    held_out: Examples | Pixels | None = None  # what the received weights are measured on first, if they are

    def __post_init__(self) -> None:
        if self.received.shape != (self.model.layout.size,):
            raise PayloadError(f"received weights of shape {self.received.shape}: ({self.model.layout.size},) expected")
        if not len(self.examples):
            raise DataError(f"device {self.device_index} has no examples to train on; it needs at least one")

    @property
    def steps(self) -> int:
        """Local steps: as many as said, or whole epochs with a smaller last batch."""
        if self.training.local_steps is not None:
            return self.training.local_steps
        return (self.training.local_epochs or 1) * -(-len(self.examples) // self.training.batch_size)


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalResult:
    """What training gave: the new weights, shape (size,), and the mean loss of the examples it saw."""

    weights: Flat
    train_loss: float  # cross-entropy before each step, without what a method adds to it
    steps: int
    evaluation: Evaluation | None = None  # of the received weights on the held-out examples


class Trainer(Protocol):
    """Trains the devices of one process; how it groups them changes no bit of any result."""

    def train(self, jobs: Sequence[TrainingJob]) -> list[LocalResult]:
        """The results of the jobs, in their order."""

    def evaluate(self, jobs: Sequence[EvaluationJob]) -> list[Evaluation]:
        """What the jobs' models do on their examples, in the jobs' order."""


class OneByOne:
    """A trainer for any model: one device after another."""

    def train(self, jobs: Sequence[TrainingJob]) -> list[LocalResult]:
        """The results of the jobs, in their order."""
        return [train(job) for job in jobs]

    def evaluate(self, jobs: Sequence[EvaluationJob]) -> list[Evaluation]:
        """What the jobs' models do on their examples, in the jobs' order."""
        return [evaluate(job.model, job.received, job.examples) for job in jobs]


def train(job: TrainingJob) -> LocalResult:
    """Minimise the mean cross-entropy of each batch, plus what the method adds, by stochastic gradient descent."""
    measured = None if job.held_out is None else evaluate(job.model, job.received, job.held_out)
    weights = named_tensors(job.model.layout, job.received)
    received = named_tensors(job.model.layout, job.received) if job.local_loss else {}
    leaves = [tensor.requires_grad_() for tensor in weights.values()]
    optimiser = Sgd(leaves, job.training.optimiser, job.global_round)
    loss_sum, seen = 0.0, 0
    for inputs, labels in islice(_batches(job), job.steps):
        loss = cross_entropy(job.model.logits(weights, inputs), labels)
        minimised = job.local_loss(loss, weights, received) if job.local_loss else loss
        optimiser.step(torch.autograd.grad(minimised, leaves))
        loss_sum += loss.item() * len(labels)
        seen += len(labels)
    trained: Flat = torch.cat([leaf.detach().reshape(-1) for leaf in leaves]).numpy()
    return LocalResult(weights=trained, train_loss=loss_sum / seen, steps=job.steps, evaluation=measured)


class Sgd:
    """The steps of torch.optim.SGD, to the bit, without its bookkeeping; momentum starts at zero."""

    def __init__(self, leaves: Sequence[torch.Tensor], settings: SgdSettings, global_round: int) -> None:
        self._leaves = leaves
        self._learning_rate = learning_rate(settings, global_round)
        self._weight_decay = settings.weight_decay
        self._momentum = settings.momentum
        self._velocities = [torch.zeros_like(leaf) for leaf in leaves] if settings.momentum else []

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        """Move the leaves against these gradients, in place."""
        if self._weight_decay:
            pairs = zip(gradients, self._leaves, strict=True)
            gradients = [gradient.add(leaf, alpha=self._weight_decay) for gradient, leaf in pairs]
        if self._momentum:
            for velocity, gradient in zip(self._velocities, gradients, strict=True):
                velocity.mul_(self._momentum).add_(gradient)
            gradients = self._velocities
        for leaf, gradient in zip(self._leaves, gradients, strict=True):
            leaf.add_(gradient, alpha=-self._learning_rate)


def learning_rate(settings: SgdSettings, global_round: int) -> float:
    """The learning rate of a global round, counted from 0, by the schedule."""
    return settings.learning_rate * settings.schedule.decay ** (global_round // settings.schedule.every)


def limit_threads() -> None:
    """One thread and deterministic algorithms for all of torch; call it before any arithmetic of the process."""
    torch.set_num_threads(1)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    torch.use_deterministic_algorithms(True)
    # else every new tensor is filled first, for programs that read what they have not written
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # set by property


def epoch_orders(job: TrainingJob) -> Iterator[Indices]:
    """In which order a device goes through its examples, epoch after epoch without end, each in an order of its own."""
    rng = np.random.default_rng([job.seed, job.device_index, job.lps_round])
    while True:
        yield rng.permutation(len(job.examples))


def batch_orders(job: TrainingJob) -> Iterator[Indices]:
    """Which examples each batch holds."""
    size = job.training.batch_size
    for order in epoch_orders(job):
        yield from (order[start : start + size] for start in range(0, len(order), size))


def _batches(job: TrainingJob) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and labels, batch after batch; examples are gathered some batches at once."""
    orders = batch_orders(job)
    while slab := list(islice(orders, SLAB_BATCHES)):
        examples, at = job.examples.take(np.concatenate(slab)), 0
        for order in slab:
            here, at = slice(at, at + len(order)), at + len(order)
            yield torch.tensor(examples.inputs[here]), torch.tensor(examples.labels[here])
