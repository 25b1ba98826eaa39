"""Training steps of a stack of dense networks in which a method corrects the gradients before the optimiser uses them.

These steps need three more passes over the weights than plain steps. So they work on a few devices at a time: they
compute, correct and use the gradients of these devices before they begin with the next devices. In this way the
gradients stay in the processor's cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from device.correction import ELEMENTS, Correct, keeps_zeros
from device.optimisers import Sgd, learning_rate
from device.stacked.dense_stack import DenseStack
from device.stacked.dense_steps import DenseSteps
from device.training import TrainingJob
from fedstrata.experiment import SgdSettings
from fedstrata.models import Model
from fedstrata.tensors import Flat

GRADIENT_BYTES = 1 << 18  # a layer's gradients at once: fits a core's second-level cache (measured)


class Correction:
    """Correct the gradients of a stack, tensor by tensor, and change the weights by the result."""

    def __init__(self, stack: DenseStack, correct: Correct, jobs: Sequence[TrainingJob]) -> None:
        """Prepare the correction for the jobs of a stack, one job per device. All jobs must have the same `correct`,
        the same plain SGD, and equally many further arguments for `correct` (`job.beside`).
        """
        self.stack = stack
        self.correct = correct
        training = jobs[0].training
        self.sgd = Sgd(cast(SgdSettings, training.optimiser), learning_rate(training, jobs[0].global_round))
        self.velocities = [self.sgd.velocity_of(leaf) for leaf in stack.leaves]
        vectors = list(zip(*(job.beside for job in jobs), strict=True))
        stacks = [_leaves_of(jobs[0].model, each) for each in vectors]
        self.beside = [tuple(leaves[number] for leaves in stacks) for number in range(len(stack.leaves))]
        self._sides = [(1, *spec.shape)[-2:] for spec in jobs[0].model.layout.tensors]
        self._keeps_zeros = keeps_zeros(correct, len(vectors))

    def take(self, part: "_Part") -> None:
        """Correct the gradient of one tensor of some devices (`part`), and change the tensor by the result."""
        corrected = self.correct(part.gradient, part.weights, *part.beside)
        if not self._keeps_zeros:  # the padding of a leaf must stay zero
            rows, columns = self._sides[part.number]
            corrected[:, rows:].zero_()
            corrected[:, :, columns:].zero_()
        self.sgd.move(part.moved, part.velocity, corrected[: len(part.moved)])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """Hold one tensor of the model for some of the stack's devices.

    `weights` and `gradient` may end with one additional row, so that their number of elements is a multiple of
    `ELEMENTS`. A training step does not change the weights in this row.
    """

    number: int  # the number of the leaf
    devices: slice
    weights: torch.Tensor
    beside: tuple[torch.Tensor, ...]
    gradient: torch.Tensor  # memory for the gradient
    moved: torch.Tensor  # the weights without the additional row
    velocity: torch.Tensor | None


class CorrectedSteps(DenseSteps):
    """Do training steps in which each gradient is corrected before it changes the weights."""

    def __init__(self, correction: Correction, active: int, rows: int) -> None:
        super().__init__(correction.stack, active, rows)
        self._take = correction.take
        self._parts = [list(_parts(correction, number, active)) for number in range(len(correction.stack.leaves))]

    def _descend(self, layer: int, slope: torch.Tensor, below: torch.Tensor) -> None:
        across = slope.transpose(1, 2)
        for part in self._parts[2 * layer]:
            torch.bmm(across[part.devices], below[part.devices], out=part.gradient)
            self._take(part)
        for part in self._parts[2 * layer + 1]:
            torch.sum(slope[part.devices], 1, keepdim=True, out=part.gradient[: len(part.moved)])
            self._take(part)


def _parts(correction: Correction, number: int, active: int) -> list[_Part]:
    """Divide the first `active` devices of a stack into parts, for the tensor with this number. A part has so few
    devices that their gradients of this tensor fit into the processor's cache, but at least one device.
    """
    leaf, velocity = correction.stack.leaves[number], correction.velocities[number]
    even = 1 if leaf[0].numel() % ELEMENTS == 0 else 2
    most = max(even, GRADIENT_BYTES // leaf[0].nbytes // even * even)
    gradient = leaf.new_zeros(min(most, len(leaf)), *leaf.shape[1:])
    parts = []
    for start in range(0, active, most):
        devices = slice(start, min(start + most, active))
        filled = slice(start, start + -(-(devices.stop - start) // even) * even)
        part = _Part(
            number=number,
            devices=devices,
            weights=leaf[filled],
            beside=tuple(each[filled] for each in correction.beside[number]),
            gradient=gradient[: filled.stop - start],
            moved=leaf[devices],
            velocity=None if velocity is None else velocity[devices],
        )
        parts.append(part)
    return parts


def _leaves_of(model: Model, vectors: Sequence[Flat]) -> list[torch.Tensor]:
    """Cut each device's vector into the model's tensors. Return a list with one stacked tensor for each tensor of the
    model. The first dimension of a stacked tensor is the device.

    If all vectors are equal, each weight matrix is stored only once, so that it stays in the processor's cache.
    """
    first = vectors[0].view(np.uint32)
    if len(vectors) == 1 or not all(np.array_equal(each.view(np.uint32), first) for each in vectors[1:]):
        return DenseStack(model, vectors).leaves
    leaves = DenseStack(model, vectors[:1]).leaves
    devices = len(vectors) + len(vectors) % 2
    return [
        leaf[:1].repeat(devices, 1, 1) if number % 2 else leaf.expand(devices, -1, -1)
        for number, leaf in enumerate(leaves)
    ]
