"""How well weights do on examples."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from fedstrata.datasets import Examples, Pixels
from fedstrata.models import Model
from fedstrata.tensors import Flat, Layout

BATCH_EXAMPLES = 512  # at once: bounds the memory, and is part of what fixes the bits


class Evaluation(NamedTuple):
    """Sums over examples, which add up over devices."""

    loss_sum: float  # cross-entropy
    correct: int
    num_examples: int


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationJob:
    """One measurement of weights on a device's examples; who measures several weights has a job for each."""

    model: Model
    weights: Flat  # shape (model.layout.size,)
    examples: Examples | Pixels


@torch.no_grad()
def evaluate(model: Model, weights: Flat, examples: Examples | Pixels) -> Evaluation:
    """Return the loss and hits of these weights, shape (model.layout.size,); changes nothing and draws nothing."""
    tensors = named_tensors(model.layout, weights)
    loss_sum, correct = 0.0, 0
    for start in range(0, len(examples), BATCH_EXAMPLES):
        batch = examples.take(np.arange(start, min(start + BATCH_EXAMPLES, len(examples))))
        labels = torch.tensor(batch.labels)
        given = model.outputs(tensors, torch.tensor(batch.inputs))
        loss_sum += cross_entropy(given, labels, reduction="none").sum(dtype=torch.float64).item()
        correct += int((given.argmax(1) == labels).sum())
    return Evaluation(loss_sum, correct, len(examples))


@torch.no_grad()
def outputs(model: Model, weights: Flat, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the outputs of inputs (n, *input_shape), shape (n, num_classes); changes nothing and draws nothing."""
    tensors = named_tensors(model.layout, weights)
    parts = [
        model.outputs(tensors, torch.tensor(inputs[start : start + BATCH_EXAMPLES]))
        for start in range(0, len(inputs), BATCH_EXAMPLES)
    ]
    return torch.cat(parts).numpy()


def named_tensors(layout: Layout, flat: Flat) -> dict[str, torch.Tensor]:
    """Return the tensors of a flat vector by name, copied into torch's own memory."""
    return {name: torch.tensor(view) for name, view in layout.views(flat).items()}
