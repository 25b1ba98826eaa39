"""Local training: the work of a device between the received model and its update.

Every bit of the result depends only on the job. The random order of batches depends on seed, device and round.
Arithmetic runs on one thread (`limit_threads`), and every tensor is made on the model's processor.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from device.correction import Correct, keeps_zeros
from device.evaluation import Evaluation, EvaluationJob, Tensors, evaluate
from device.held_data import held_data, may_be_held
from device.optimisers import State, clipped, dense, flat, optimiser_of
from fedstrata.datasets import Examples
from fedstrata.errors import DataError, PluginError
from fedstrata.experiment import TrainingSettings
from fedstrata.models import Model
from fedstrata.plugins import describe
from fedstrata.tasks import Task
from fedstrata.tensors import Flat
from fedstrata.tensors.processor import read

Indices = NDArray[np.int64]
Batch = tuple[torch.Tensor, Tensors, torch.Tensor]  # inputs, further inputs by name, targets
Outputs = Callable[..., torch.Tensor]  # (weights by name, inputs, further inputs by keyword) → outputs
DROPOUT = 0x64726F70  # in the seed of dropout, so that its draws differ from those of batches
MOST_UNREAD = 1024  # losses read at once, so that memory does not grow with the number of steps
SLAB_BATCHES = 32  # batches gathered at once, so that memory does not grow with a device's data


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingJob:
    """Describe one device's local training in one LPS round. LPS rounds and global rounds are counted from 0."""

    model: Model
    start: Flat  # the weights to begin from, shape (model.layout.size,)
    examples: Examples
    training: TrainingSettings
    seed: int
    device_index: int
    lps_round: int
    global_round: int
    task: Task
    held_out: Examples | None = None  # if given, `start` is measured on these first
    correct: Correct | None = None  # gives the optimiser a corrected gradient
    beside: tuple[Flat, ...] = ()  # further arguments of `correct`, each with the shape of `start`
    number: int = 0  # the number of this training in the LPS round; each has its own batch order
    epochs: int | None = None  # replaces the steps or epochs of `training`
    targets: NDArray[np.float32] | None = None  # replace labels: one distribution over classes per example
    only: tuple[str, ...] | None = None  # names of the tensors that may change; None: all
    optimiser_state: State = field(default_factory=dict)  # from an earlier training; empty: a new optimiser

    def __post_init__(self) -> None:
        size = self.model.layout.size
        for weights in (self.start, *self.beside):
            if weights.shape != (size,) or weights.dtype != np.float32:
                raise PluginError(f"weights have {weights.dtype} and shape {weights.shape}; expected float32 ({size},)")
        if self.beside and self.correct is None:
            raise PluginError(f"`beside` has {len(self.beside)} vectors, but `correct` is not given: give both or none")
        if not isinstance(self.correct, Hashable):
            raise PluginError(f"the correction {self.correct!r} has no hash; give a function or a frozen dataclass")
        if self.targets is not None and (len(self.targets), self.targets.ndim) != (len(self.examples), 2):
            raise PluginError(
                f"targets have shape {self.targets.shape}; give one row for each of {len(self.examples)} examples"
            )
        if self.only is not None and not (self.leaves and {*self.only} <= {*self.model.layout.names}):
            known = ", ".join(self.model.trainable.names)
            raise PluginError(f"`only` is {list(self.only)}; name some of the tensors that train: {known}")
        if not len(self.examples):
            raise DataError(f"device {self.device_index} has no examples to train on; it needs at least one")

    @property
    def leaves(self) -> tuple[str, ...]:
        """The names of the tensors that the optimiser changes, in the layout's order."""
        return tuple(name for name in self.model.trainable.names if self.only is None or name in self.only)

    @property
    def fixed_statistics(self) -> tuple[str, ...]:
        """The names of the model's statistics (such as means of batch normalisation) that keep their values in this
        training.
        """
        return tuple(name for name in self.model.statistics if self.only is not None and name not in self.only)

    @property
    def steps(self) -> int:
        """The number of local steps. If `epochs` is set, it is the number of steps in this many whole epochs. Otherwise
        the settings give the number.
        """
        if self.epochs is None:
            return self.training.steps(len(self.examples))
        return self.epochs * self.training.batches(len(self.examples))

    @property
    def trained_examples(self) -> int:
        """The number of examples in all steps. An example is counted each time that it is used."""
        return self.training.examples_of_steps(self.steps, len(self.examples))


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalResult:
    """Hold the result of training: the new weights, shape (size,), and the mean loss over the examples used."""

    weights: Flat
    train_loss: float  # mean task loss before each step, without terms of the method
    steps: int
    evaluation: Evaluation | None = None  # of `start`, on the held-out examples
    optimiser_state: State = field(default_factory=dict)  # after training, if the experiment keeps it


class Trainer(Protocol):
    """Define the interface of a trainer for the devices of one process. A trainer may train devices together only if
    this changes no bit of a result.
    """

    def train(self, jobs: Sequence[TrainingJob]) -> list[LocalResult]:
        """Train the jobs, and return their results in the order of the jobs."""

    def evaluate(self, jobs: Sequence[EvaluationJob]) -> list[Evaluation]:
        """Measure each job's model on its examples. Return the measurements in the order of the jobs."""


class OneByOne:
    """Train any model, one device after another."""

    def train(self, jobs: Sequence[TrainingJob]) -> list[LocalResult]:
        """Train the jobs, and return their results in the order of the jobs."""
        return [train(job) for job in jobs]

    def evaluate(self, jobs: Sequence[EvaluationJob]) -> list[Evaluation]:
        """Measure each job's model on its examples. Return the measurements in the order of the jobs."""
        return [evaluate(job.model, job.weights, job.examples, job.task) for job in jobs]


def train(job: TrainingJob) -> LocalResult:
    """Train as the job describes, and return the result. The optimiser minimises the task's loss batch by batch. If the
    method has a correction, the correction changes each gradient before the optimiser uses it.
    """
    measured = None if job.held_out is None else evaluate(job.model, job.start, job.held_out, job.task)
    weights = job.model.tensors(job.start)
    leaves = [weights[name].requires_grad_() for name in job.leaves]
    descent, outputs = Descent(job, leaves), outputs_in_training(job)
    losses = Losses()
    for batch in batches(job):
        loss, (_, _, targets) = mean_loss(job, outputs, weights, batch), batch
        descent.step(gradients_of(loss, leaves))
        losses.add(loss, len(targets))
    trained = flat(list(weights.values()))
    for place in job.model.layout.slices_of(job.model.layout.select(job.fixed_statistics)):
        trained[place] = job.start[place]
    return LocalResult(
        weights=trained,
        train_loss=losses.mean(),
        steps=job.steps,
        evaluation=measured,
        optimiser_state=descent.state() if job.training.optimiser.state == "kept" else {},
    )


def outputs_in_training(job: TrainingJob) -> Outputs:
    """Return the function that computes outputs in a local step. Random numbers, such as those for dropout, depend only
    on the seed, the device, the LPS round, and the training's number.
    """
    address = [job.seed, job.device_index, job.lps_round, DROPOUT, *([job.number] if job.number else [])]
    return job.model.outputs_in_training(np.random.default_rng(address))


def mean_loss(job: TrainingJob, outputs: Outputs, weights: Tensors, batch: Batch) -> torch.Tensor:
    """Return the task's mean loss of a batch. Raises PluginError if the user's own code fails, or gives a loss without
    a gradient.
    """
    inputs, more, targets = batch
    try:
        loss = job.task.mean_loss(outputs(weights, inputs, **more), targets)
    except PluginError as error:
        raise PluginError(f"{_of_lone_example(job) if len(inputs) == 1 else ''}{error}") from error
    if not loss.requires_grad:
        raise PluginError("the loss depends on no weight that trains; remove detach and no_grad from model and task")
    return loss


def gradients_of(loss: torch.Tensor, leaves: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return the gradients of a loss. Raises PluginError if the user's own `backward` fails."""
    try:
        return torch.autograd.grad(loss, leaves, materialize_grads=True)
    except (Exception, SystemExit) as error:
        raise PluginError(f"the gradient of the loss cannot be computed: {describe(error)}") from error


def _of_lone_example(job: TrainingJob) -> str:
    """Return the beginning of the error message for a batch with a single example. Batch normalisation cannot train on
    such a batch.
    """
    number, size = len(job.examples), job.training.batch_size
    if number == 1:
        return f"device {job.device_index} has 1 example, and the model fails on a batch of 1; give the device more: "
    return (
        f"training.batch_size {size} leaves a batch of 1 of the {number} examples of device {job.device_index}; "
        f"choose another{'' if size == 1 else ', or set training.last_batch to joined'}: "
    )


class Losses:
    """Add up the losses of batches in the order of the steps. Each loss is multiplied by the batch's number of
    examples. Losses are read from the processor many at a time, because a read waits until the processor has computed.
    """

    def __init__(self) -> None:
        self.examples, self._sum = 0, 0.0
        self._unread: list[tuple[torch.Tensor, int]] = []

    def add(self, loss: torch.Tensor, count: int) -> None:
        """Add the mean loss of a batch with this number of examples."""
        self.examples += count
        self._unread.append((loss.detach(), count))
        if len(self._unread) == MOST_UNREAD:
            self.mean()

    def mean(self) -> float:
        """Return the mean over all examples so far."""
        if self._unread:
            losses = read(torch.stack([loss for loss, _ in self._unread]).double())
            for loss, (_, count) in zip(losses.tolist(), self._unread, strict=True):
                self._sum += loss * count
            self._unread.clear()
        return self._sum / self.examples


class Descent:
    """Change the trained tensors of one device by their gradients. If the job has a correction, the gradients are
    corrected first.
    """

    def __init__(self, job: TrainingJob, leaves: Sequence[torch.Tensor]) -> None:
        self._optimiser = optimiser_of(job.training, job.global_round, leaves, job.optimiser_state)
        self._clip_norm = job.training.optimiser.clip_norm
        self._correct = job.correct
        if self._correct is not None:
            keeps_zeros(self._correct, len(job.beside))  # refuses a function that is not elementwise, as in a stack
        trainable = job.model.trainable
        views = [trainable.views(vector[: trainable.size]) for vector in job.beside]
        self._parts = [
            (leaf, tuple(leaf.new_tensor(each[name]) for each in views))
            for leaf, name in zip(leaves, job.leaves, strict=True)
        ]

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        """Change the trained tensors, in place, by these gradients."""
        # Torch rounds sums with an expanded gradient otherwise than with others. So an expanded one is copied.
        used = [gradient if gradient.is_contiguous() else gradient.clone() for gradient in gradients]
        if self._correct is not None or self._clip_norm is not None:
            used = [dense(gradient) for gradient in used]
        if self._correct is not None:
            corrected = zip(used, self._parts, strict=True)
            # copies, because a correction may overwrite a gradient, and leaves may share one
            used = [self._correct(gradient.clone(), leaf.detach(), *beside) for gradient, (leaf, beside) in corrected]
        if self._clip_norm is not None:
            used = clipped(used, self._clip_norm)
        self._optimiser.move(used)

    def state(self) -> State:
        """Return the optimiser's state."""
        return self._optimiser.state()


def limit_threads() -> None:
    """Limit torch to one thread and to deterministic algorithms. Call this before any arithmetic of the process."""
    torch.set_num_threads(1)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    # Like torch.use_deterministic_algorithms(True), but without loading torch's compiler, which takes 4 s of CPU time.
    torch.set_deterministic_debug_mode("error")
    # Deterministic mode would fill every new tensor, for programs that read uninitialised memory. Ours do not.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # set by property


def epoch_orders(job: TrainingJob) -> Iterator[Indices]:
    """Yield the order in which a device uses its examples, for one epoch after another, without end."""
    address = [job.seed, job.device_index, job.lps_round]
    rng = np.random.default_rng([*address, job.number] if job.number else address)
    while True:
        yield rng.permutation(len(job.examples))


def batch_orders(job: TrainingJob) -> Iterator[Indices]:
    """Yield the indexes of the examples of each batch, step by step."""
    size, count = job.training.batch_size, len(job.examples)
    ends = [number * size for number in range(1, job.training.batches(count))] + [job.training.epoch_examples(count)]
    cut = (order[start:end] for order in epoch_orders(job) for start, end in pairwise((0, *ends)))
    return islice(cut, job.steps)


def batches(job: TrainingJob) -> Iterator[Batch]:
    """Yield the batch of each step: inputs, further inputs by name, and targets."""
    return _gathered(job) if may_be_held(job.examples, job.model.processor) else _drawn(job)


def _gathered(job: TrainingJob) -> Iterator[Batch]:
    """Gather each batch from tensors on the processor. Only indexes are sent there, many at once."""
    orders, processor = batch_orders(job), job.model.processor
    inputs, more, targets = held_data(job.examples, job.task, processor)
    if job.targets is not None:
        targets = processor.held(job.targets)
    while slab := list(islice(orders, SLAB_BATCHES)):
        for places in torch.split(processor.tensor(np.concatenate(slab)), [len(each) for each in slab]):
            further = {name: tensor.index_select(0, places) for name, tensor in more.items()}
            yield inputs.index_select(0, places), further, targets.index_select(0, places)


def _drawn(job: TrainingJob) -> Iterator[Batch]:
    """Read the examples of several batches at once, and send each batch to the processor."""
    orders, done = batch_orders(job), 0
    address = [job.seed, job.device_index, job.lps_round, job.number]
    an_epoch, processor = job.training.batches(len(job.examples)), job.model.processor
    while slab := list(islice(orders, SLAB_BATCHES)):
        sizes, order = [len(each) for each in slab], np.concatenate(slab)
        epochs = np.repeat(np.arange(done, done + len(slab)) // an_epoch, sizes)
        examples = job.examples.drawn(order, address, epochs)
        targets = job.task.targets(examples) if job.targets is None else job.targets[order]
        done += len(slab)
        for start, stop in pairwise(np.cumsum([0, *sizes])):
            more = processor.tensors({name: array[start:stop] for name, array in examples.more.items()})
            yield processor.tensor(examples.inputs[start:stop]), more, processor.tensor(targets[start:stop])
