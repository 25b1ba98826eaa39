"""Compute a device's gradient, by which some methods compare devices. Only devices import this module, because it needs
torch.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedstrata.tensors.layout import Flat
from fedstrata.tensors.processor import read

if TYPE_CHECKING:
    from fedstrata.datasets import Examples
    from fedstrata.models import Model

Gradient = NDArray[np.float64]
SLAB_EXAMPLES = 512  # examples per pass: limits the memory; another number would change the last bits of results


def gradient_at(model: "Model", weights: Flat, examples: "Examples", indexes: NDArray[np.int64]) -> Gradient:
    """Return the gradient of the mean cross-entropy over some examples, shape (model.trainable.size,).

    No random numbers are drawn. Dropout is off, and normalisation layers use their statistics without changing them.
    """
    import torch
    from torch.nn.functional import cross_entropy

    tensors = model.tensors(weights)
    leaves = [tensors[name].requires_grad_() for name in model.trainable.names]
    total = np.zeros(model.trainable.size)
    for start in range(0, len(indexes), SLAB_EXAMPLES):
        slab = examples.take(indexes[start : start + SLAB_EXAMPLES])
        labels = model.processor.tensor(slab.labels)
        loss = cross_entropy(model.outputs_for(tensors, slab), labels, reduction="sum")
        gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
        whole = [part.to_dense() if part.is_sparse else part for part in gradients]
        total += read(torch.cat([part.reshape(-1) for part in whole]))
    return total / len(indexes)
