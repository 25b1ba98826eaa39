"""The measurement of a model on examples."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from device.last_layer import OutputsWithFeatures
from fedstrata.datasets import Examples
from fedstrata.models import Model
from fedstrata.tasks import Task
from fedstrata.tensors import Flat
from fedstrata.tensors.processor import read

Tensors = dict[str, torch.Tensor]
BATCH_EXAMPLES = 512  # examples per batch: limits memory. Another number would change the last bits.


class Evaluation(NamedTuple):
    """Hold a measurement of a model as sums over examples. The sums of several devices can be added."""

    loss_sum: float
    sums: tuple[float, ...]  # the task's sums, in the task's order
    num_examples: int


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationJob:
    """Describe one measurement: the weights of a model, and the device's examples on which they are measured."""

    model: Model
    weights: Flat  # shape (model.layout.size,)
    examples: Examples
    task: Task


@torch.no_grad()
def evaluate(model: Model, weights: Flat, examples: Examples, task: Task) -> Evaluation:
    """Measure a model with these weights, shape (model.layout.size,), on examples. Return the sum of the losses, and
    the sums from which the task computes its metrics. The function changes nothing and draws no random numbers.
    """
    run = partial(model.outputs_for, model.tensors(weights))
    loss_sum, sums = 0.0, np.zeros(len(task.sums))
    for start in range(0, len(examples), BATCH_EXAMPLES):
        batch = examples.take(np.arange(start, min(start + BATCH_EXAMPLES, len(examples))))
        targets = model.processor.tensor(task.targets(batch))
        given = run(batch)
        loss_sum += float(read(task.loss(given, targets).sum(dtype=torch.float64)))
        sums += task.measure_with(run, given, targets, batch)
    return Evaluation(loss_sum, tuple(sums.tolist()), len(examples))


@torch.no_grad()
def features(model: Model, weights: Flat, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the inputs of a model's last layer, shape (n, width), for inputs of shape (n, *input_shape). The function
    changes nothing and draws no random numbers.
    """
    return _in_batches(OutputsWithFeatures(model, model.outputs).features_of, model, weights, inputs)


@torch.no_grad()
def outputs(model: Model, weights: Flat, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a model's outputs, shape (n, num_classes), for inputs of shape (n, *input_shape). The function changes
    nothing and draws no random numbers.
    """
    return _in_batches(model.outputs, model, weights, inputs)


def _in_batches(
    compute: Callable[..., torch.Tensor], model: Model, weights: Flat, inputs: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the results of `compute(tensors, batch)` for all inputs, one after another."""
    tensors = model.tensors(weights)
    parts = [
        compute(tensors, model.processor.tensor(inputs[start : start + BATCH_EXAMPLES]))
        for start in range(0, len(inputs), BATCH_EXAMPLES)
    ]
    return read(torch.cat(parts))
