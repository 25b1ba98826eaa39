"""The examples of many devices in one array, shape (devices, rows, …). Each device has its own random generator, which
decides the order of the device's examples.

All devices have the same number of rows. If a device has fewer examples left, its other rows repeat examples. These
rows have the weight 0, so their content changes no bit of the result.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from device.training import TrainingJob, epoch_orders
from fedstrata.datasets import Examples
from fedstrata.tensors.processor import Processor, Staging

Indices = NDArray[np.int64]
SLAB_STEPS = 32  # steps prepared at once, so that memory does not grow with the number of steps


class Inputs:
    """Hold the inputs of one step, shape (devices, rows, width). Each example is filled up with zeros to the width."""

    def __init__(self, examples: Sequence[Examples], rows: int, width: int, processor: Processor) -> None:
        """Make room for `rows` examples per device, each filled up with zeros to `width` numbers."""
        size = math.prod(examples[0].input_shape)
        self.values = processor.zeros(len(examples), rows, width)
        self._own = self.values[..., :size]
        self._scale = examples[0].scale
        self._gathered = Staging(self._own, np.uint8 if self._scale else np.float32)
        self._sources = [each.stored.reshape(-1, size) for each in examples]
        self._targets = list(self._gathered.array)

    def fill(self, orders: Sequence[Indices]) -> torch.Tensor:
        """Return the inputs of examples, shape (n, rows, width), for the first n devices. For each of these devices,
        `orders` has the indexes of its `rows` examples. The next call overwrites the result.
        """
        for source, target, order in zip(self._sources, self._targets, orders, strict=False):
            source.take(order, axis=0, out=target, mode="clip")
        active = len(orders)
        self._gathered.send(active)
        if self._scale:
            self._own[:active].div_(self._scale)
        return self.values[:active]


@dataclass(frozen=True, kw_only=True, eq=False)
class Slab:
    """Hold the batches of several steps of a stack of devices. Each row of a batch has an example, a label and a
    weight.
    """

    orders: Sequence[Indices]  # by device: shape (steps of the device, rows)
    labels: torch.Tensor  # (steps, devices, rows, 1)
    shares: torch.Tensor  # (steps, devices, rows, 1): a row's weight in its batch's mean, 1/n; 0 for no example
    counts: NDArray[np.int64]  # (steps, devices): examples in each batch; 0 where a device has finished


class Batches:
    """Return the batches of a stack's devices, several steps at a time. `jobs` must be sorted so that the job with the
    most steps is first.
    """

    def __init__(self, jobs: Sequence[TrainingJob], rows: int, width: int) -> None:
        self._processor = jobs[0].model.processor
        self.inputs = Inputs([job.examples for job in jobs], rows, width, self._processor)
        self._rows = rows
        self._labels = [job.examples.labels for job in jobs]
        self._orders = [_Orders(job, rows) for job in jobs]

    def slab(self, steps: int) -> Slab:
        """Return the batches of the next `steps` steps."""
        taken = [orders.take(steps) for orders in self._orders]
        labels = np.zeros((steps, len(taken), self._rows), np.int64)
        counts = np.zeros((steps, len(taken)), np.int64)
        for device, (orders, count) in enumerate(taken):
            labels[: len(orders), device] = self._labels[device][orders]
            counts[: len(orders), device] = count
        shares = np.where(np.arange(self._rows) < counts[..., None], 1 / np.maximum(counts, 1)[..., None], 0)
        return Slab(
            orders=[orders for orders, _ in taken],
            labels=self._processor.shared(labels[..., None]),
            shares=self._processor.shared(shares.astype(np.float32)[..., None]),
            counts=counts,
        )


class _Orders:
    """Divide one device's examples into batches, epoch after epoch, until all its steps are done. A batch is a row of
    indexes.
    """

    def __init__(self, job: TrainingJob, rows: int) -> None:
        self._epochs = epoch_orders(job)
        self._rows = rows
        self._left = job.steps
        self._ready: tuple[Indices, Indices] = np.empty((0, rows), np.int64), np.empty(0, np.int64)

    def take(self, steps: int) -> tuple[Indices, Indices]:
        """Return the next batches, shape (at most `steps`, rows), and the number of valid rows of each batch."""
        steps = min(steps, self._left)
        self._left -= steps
        while len(self._ready[0]) < steps:
            more = self._in_rows(next(self._epochs))
            self._ready = np.concatenate([self._ready[0], more[0]]), np.concatenate([self._ready[1], more[1]])
        orders, counts = self._ready
        self._ready = orders[steps:], counts[steps:]
        return orders[:steps], counts[:steps]

    def _in_rows(self, order: Indices) -> tuple[Indices, Indices]:
        """Return the batches of one epoch, and the number of valid rows of each batch. The last batch is completed with
        examples of weight 0.
        """
        batches = -(-len(order) // self._rows)
        filled = np.append(order, order[: batches * self._rows - len(order)]).reshape(batches, self._rows)
        counts = np.full(batches, self._rows)
        counts[-1] -= filled.size - len(order)
        return filled, counts
