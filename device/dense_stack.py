"""The weights of many devices' dense networks, and what they give for inputs, as batched matrix products.

A device's bits do not depend on who shares its stack, because every product of a stack has the same shapes, the
same strides and the same alignment as that of a stack of one: widths are rounded up to 64 bytes, a batch always
has as many rows, and rows or columns that stand for nothing are zero or count for nothing.
`docs/decisions/stacked-training.md` has the measurements behind this.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch

from fedstrata.models import Model
from fedstrata.tensors import Flat

LANES = 16  # float32 elements in 64 bytes, what the vector units and the matrix kernels take at once


class DenseStack:
    """The weights of D devices' dense networks, each layer's shape (D, out, in) with widths rounded up."""

    def __init__(self, model: Model, received: Sequence[Flat]) -> None:
        self._layout = model.layout
        self.widths = [_rounded(width) for width in model.dense]
        layers = list(pairwise(self.widths))
        self.weights = [torch.zeros(len(received), out, into) for into, out in layers]
        self.biases = [torch.zeros(len(received), 1, out) for _, out in layers]
        self.leaves = [leaf for pair in zip(self.weights, self.biases, strict=True) for leaf in pair]
        # added to the last biases: what only fills the logits up is no class, and a row of 64 bytes is quickly summed
        self.no_class = torch.zeros(self.widths[-1])
        self.no_class[model.dense[-1] :] = -math.inf
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

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the networks give for inputs (D, rows, in): shape (D, rows, out), −∞ where there is no class."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            inputs = torch.baddbmm(bias, inputs, weight.transpose(1, 2)).relu_()
        return torch.baddbmm(self.biases[-1] + self.no_class, inputs, self.weights[-1].transpose(1, 2))


def _rounded(width: int) -> int:
    return -(-width // LANES) * LANES
