"""Training many devices at once: dense networks as batched matrix products with a leading device axis.

A device's bits do not depend on who shares its stack, because every product of a stack has the same shapes, the
same strides and the same alignment as that of a stack of one: widths are rounded up to 64 bytes, a batch always
has as many rows, and rows or columns that stand for nothing are zero. `docs/decisions/stacked-training.md` has
the measurements behind this.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import log_softmax

from device.evaluation import Evaluation, EvaluationJob
from device.training import LocalResult, OneByOne, Sgd, TrainingJob, batch_orders
from fedstrata.datasets import Examples, Pixels
from fedstrata.logs import EventLog
from fedstrata.models import Model
from fedstrata.tensors import Flat

LANES = 16  # float32 elements in 64 bytes, what the vector units and the matrix kernels take at once
EVALUATION_ROWS = 64  # examples of one device in one product: fixed, so that its bits are
STACK_BYTES = 6 << 20  # of weights, gradients and inputs in one stack: about what a core's cache holds
log = EventLog("training")


class Stacked:
    """A trainer that takes jobs alike together, and those of other models one by one."""

    def __init__(self, most_devices: int | None = None) -> None:
        """`most_devices` bounds a stack; by default what fits a core's cache. Neither changes a bit."""
        self._most_devices = most_devices
        self._alone = OneByOne()
        self._has_said_why_not = False

    def train(self, jobs: Sequence[TrainingJob]) -> list[LocalResult]:
        """The results of the jobs, in their order."""
        results: dict[int, LocalResult] = {}
        alike: dict[object, list[int]] = defaultdict(list)
        for place, job in enumerate(jobs):
            if job.model.dense and job.local_loss is None:
                alike[(job.model.dense, job.training, batch_rows(job), job.global_round)].append(place)
            else:
                self._say_why_not(job)
                (results[place],) = self._alone.train([job])
        for places in alike.values():
            for part in self._parts(jobs[places[0]].model, batch_rows(jobs[places[0]]), places):
                results.update(zip(part, train_stack([jobs[place] for place in part]), strict=True))
        return [results[place] for place in range(len(jobs))]

    def evaluate(self, jobs: Sequence[EvaluationJob]) -> list[Evaluation]:
        """What the jobs' models do on their examples, in the jobs' order."""
        results: dict[int, Evaluation] = {}
        alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, job in enumerate(jobs):
            if job.model.dense:
                alike[job.model.dense].append(place)
            else:
                (results[place],) = self._alone.evaluate([job])
        for places in alike.values():
            for part in self._parts(jobs[places[0]].model, EVALUATION_ROWS, places):
                results.update(zip(part, evaluate_stack([jobs[place] for place in part]), strict=True))
        return [results[place] for place in range(len(jobs))]

    def _parts(self, model: Model, rows: int, places: list[int]) -> Iterator[list[int]]:
        device_bytes = 4 * (2 * model.layout.size + rows * sum(model.dense))
        most = self._most_devices or max(1, STACK_BYTES // device_bytes)
        return (places[start : start + most] for start in range(0, len(places), most))

    def _say_why_not(self, job: TrainingJob) -> None:
        if not self._has_said_why_not:
            self._has_said_why_not = True
            reason = "the method adds to the loss" if job.local_loss else "the model is not a plain dense network"
            log.info("devices_train_one_by_one", reason=reason)


def batch_rows(job: TrainingJob) -> int:
    """Rows of every batch of a device; a smaller last one is filled up with zeros that count for nothing."""
    return min(job.training.batch_size, len(job.examples))


class DenseStack:
    """The weights of D devices' dense networks, each layer's shape (D, out, in) with widths rounded up."""

    def __init__(self, model: Model, received: Sequence[Flat]) -> None:
        self.classes = model.dense[-1]
        self._layout = model.layout
        self.widths = [_rounded(width) for width in model.dense]
        layers = list(pairwise(self.widths))
        self.weights = [torch.zeros(len(received), out, into) for into, out in layers]
        self.biases = [torch.zeros(len(received), 1, out) for _, out in layers]
        self.leaves = [leaf for pair in zip(self.weights, self.biases, strict=True) for leaf in pair]
        for device, flat in enumerate(received):
            for leaf, view in zip(self._own(device), model.layout.views(flat).values(), strict=True):
                leaf[...] = view

    def _own(self, device: int) -> Iterator[np.ndarray]:
        """One device's tensors as NumPy views, in the layout's order, without what fills them up."""
        for leaf, spec in zip(self.leaves, self._layout.tensors, strict=True):
            own = leaf[device].numpy() if len(spec.shape) == 2 else leaf[device, 0].numpy()
            yield own[tuple(slice(side) for side in spec.shape)]

    def flat(self, device: int) -> Flat:
        """One device's weights, shape (layout.size,)."""
        return np.concatenate([own.reshape(-1) for own in self._own(device)])

    def forward(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        """What every layer gives for inputs (A, rows, in) of the first A devices; the last are the logits."""
        active, outputs = len(inputs), []
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True), 1):
            inputs = torch.baddbmm(bias[:active], inputs, weight[:active].transpose(1, 2))
            if number < len(self.weights):
                inputs.relu_()
            outputs.append(inputs)
        return outputs

    def gradients(self, inputs: torch.Tensor, outputs: list[torch.Tensor], slope: torch.Tensor) -> list[torch.Tensor]:
        """Of the leaves of the first A devices, from the loss's slope in the logits, shape (A, rows, out)."""
        active, leaves = len(inputs), []
        for layer in range(len(self.weights) - 1, -1, -1):
            below = outputs[layer - 1] if layer else inputs
            leaves += [slope.sum(1, keepdim=True), torch.bmm(slope.transpose(1, 2), below)]
            if layer:
                slope = torch.bmm(slope, self.weights[layer][:active]).mul_(below > 0)
        return leaves[::-1]


class Batches:
    """The batches of D devices side by side, each device's examples in the orders of its own generator."""

    def __init__(self, jobs: Sequence[TrainingJob], width: int) -> None:
        """`jobs` with the most steps first, so that the first A are those still at work."""
        rows = batch_rows(jobs[0])
        self.inputs = torch.zeros(len(jobs), rows, width)
        self.labels = torch.zeros(len(jobs), rows, 1, dtype=torch.int64)
        self.shares = torch.zeros(len(jobs), rows, 1)  # a row's share in its batch's mean: 1/n; 0 where no example is
        self._inputs = [InputRows(rows, job.examples) for rows, job in zip(self.inputs, jobs, strict=True)]
        self._labels = [
            (job.examples.labels, rows) for job, rows in zip(jobs, self.labels[..., 0].numpy(), strict=True)
        ]
        self._orders = [batch_orders(job) for job in jobs]
        self._taken = [0] * len(jobs)

    def advance(self, active: int) -> None:
        """Fill in the next batch of the first `active` devices."""
        for device in range(active):
            order = next(self._orders[device])
            self._inputs[device].fill(order)
            labels, rows = self._labels[device]
            rows[: len(order)] = labels[order]
            if len(order) != self._taken[device]:
                self._taken[device] = len(order)
                self.shares[device] = 0.0
                self.shares[device, : len(order)] = 1.0 / len(order)


class InputRows:
    """Where one device's inputs go, (rows, width), and where they come from."""

    def __init__(self, rows: torch.Tensor, examples: Examples | Pixels) -> None:
        self._examples = examples
        self._size = math.prod(examples.input_shape)
        self._rows = rows.numpy()
        is_plain = isinstance(examples, Examples) and self._rows.shape[1] == self._size
        self._flat = examples.inputs.reshape(-1, self._size) if is_plain else None

    def fill(self, order: NDArray[np.int64]) -> None:
        """Put the examples at these places into the first rows and zeros into the others."""
        count = len(order)
        if self._flat is not None:
            self._flat.take(order, axis=0, out=self._rows[:count], mode="clip")
        else:
            self._rows[:count, : self._size] = self._examples.take(order).inputs.reshape(count, self._size)
        if count < len(self._rows):
            self._rows[count:] = 0.0


@torch.no_grad()
def train_stack(jobs: Sequence[TrainingJob]) -> list[LocalResult]:
    """What `train` gives for each of these jobs alike, all at once."""
    places = sorted(range(len(jobs)), key=lambda place: -jobs[place].steps)
    ordered = [jobs[place] for place in places]
    stack = DenseStack(ordered[0].model, [job.received for job in ordered])
    measured = _measured(stack, [job.held_out for job in ordered])
    losses = _descend(stack, ordered)
    results = {
        place: LocalResult(
            weights=stack.flat(device), train_loss=losses[device], steps=job.steps, evaluation=measured[device]
        )
        for device, (place, job) in enumerate(zip(places, ordered, strict=True))
    }
    return [results[place] for place in range(len(jobs))]


def _descend(stack: DenseStack, jobs: Sequence[TrainingJob]) -> list[float]:
    """Train the stack in place; gives each device's mean loss over the examples it saw."""
    batches = Batches(jobs, stack.widths[0])
    optimiser = Sgd(stack.leaves, jobs[0].training.optimiser, jobs[0].global_round)
    steps = np.array([job.steps for job in jobs])
    slope = torch.zeros(len(jobs), batch_rows(jobs[0]), stack.widths[-1])
    loss_sums = torch.zeros(len(jobs), batch_rows(jobs[0]), dtype=torch.float64)
    seen = torch.zeros(len(jobs), dtype=torch.int64)
    for step in range(steps[0]):
        active = int((steps > step).sum())
        batches.advance(active)
        inputs, labels, shares = batches.inputs[:active], batches.labels[:active], batches.shares[:active]
        outputs = stack.forward(inputs)
        logs = log_softmax(outputs[-1][..., : stack.classes], 2)
        counted = shares[..., 0] > 0
        loss_sums[:active] -= logs.gather(2, labels)[..., 0] * counted
        seen[:active] += counted.sum(1)
        # the slope of the mean cross-entropy: softmax minus one at the label, times the row's share
        slope[:active, :, : stack.classes] = logs.exp_()
        slope[:active].scatter_add_(2, labels, -torch.ones_like(shares))
        optimiser.step(stack.gradients(inputs, outputs, slope[:active].mul_(shares)), active)
    return [float(row.sum()) / count for row, count in zip(loss_sums.numpy(), seen.tolist(), strict=True)]


@torch.no_grad()
def evaluate_stack(jobs: Sequence[EvaluationJob]) -> list[Evaluation]:
    """What `evaluate` gives for each of these jobs of one model, all at once."""
    stack = DenseStack(jobs[0].model, [job.received for job in jobs])
    return [measured for measured in _measured(stack, [job.examples for job in jobs]) if measured is not None]


def _measured(stack: DenseStack, held_out: Sequence[Examples | Pixels | None]) -> list[Evaluation | None]:
    """Sums over each device's examples, `EVALUATION_ROWS` at a time; None for a device without any to measure on."""
    sizes = [0 if examples is None else len(examples) for examples in held_out]
    losses: list[list[NDArray[np.float32]]] = [[] for _ in held_out]
    correct = [0] * len(held_out)
    inputs = torch.zeros(len(held_out), EVALUATION_ROWS, stack.widths[0])
    pairs = zip(inputs, held_out, strict=True)
    targets = [None if examples is None else InputRows(rows, examples) for rows, examples in pairs]
    for start in range(0, max(sizes), EVALUATION_ROWS):
        orders = [np.arange(start, max(start, min(start + EVALUATION_ROWS, size))) for size in sizes]
        for rows, order in zip(targets, orders, strict=True):
            if rows is not None:
                rows.fill(order)
        logits = stack.forward(inputs)[-1][..., : stack.classes]
        logs, guesses = log_softmax(logits, 2).numpy(), logits.argmax(2).numpy()
        for device, (examples, order) in enumerate(zip(held_out, orders, strict=True)):
            if examples is not None:
                labels, rows_of = examples.labels[order], np.arange(len(order))
                losses[device].append(-logs[device, rows_of, labels])
                correct[device] += int((guesses[device, rows_of] == labels).sum())
    sums = [float(np.concatenate(parts).sum(dtype=np.float64)) if parts else 0.0 for parts in losses]
    summed = zip(held_out, sums, correct, sizes, strict=True)
    return [None if examples is None else Evaluation(total, hits, size) for examples, total, hits, size in summed]


def _rounded(width: int) -> int:
    return -(-width // LANES) * LANES
