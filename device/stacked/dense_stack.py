"""The weights of many devices' dense networks, and their outputs, computed by batched matrix products.

The bits of a device's result do not depend on the other devices in its stack. The reason is that every product has the
same shapes, strides and alignment as with a single device. Widths are padded to a multiple of 64 bytes, and a batch is
padded to a fixed number of rows. Padding columns are zero, and padding rows have the weight zero
(docs/decisions/stacked-training.md).
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch

from fedstrata.models import Model
from fedstrata.tensors import Flat
from fedstrata.tensors.processor import Staging, read

LANES = 16  # float32 elements in 64 bytes: the width of vector units and matrix kernels


class DenseStack:
    """Hold the weights of D devices' dense networks. Each layer has the shape (D, out, in), with padded widths."""

    def __init__(self, model: Model, starts: Sequence[Flat]) -> None:
        self.processor, self._layout = model.processor, model.layout
        zeros = self.processor.zeros
        self.widths = [_rounded(width) for width in model.dense]
        layers = list(pairwise(self.widths))
        self.weights = [zeros(len(starts), out, into) for into, out in layers]
        # An even number of rows, so that all biases together fill vector units in every elementwise operation.
        self.biases = [zeros(len(starts) + len(starts) % 2, 1, out) for _, out in layers]
        self.leaves = [leaf for pair in zip(self.weights, self.biases, strict=True) for leaf in pair]
        # Added to the last biases: −∞ gives the padding of the logits the probability 0.
        self.no_class = zeros(self.widths[-1])
        self.no_class[model.dense[-1] :] = -math.inf
        stagings = [Staging(leaf) for leaf in self.leaves]
        for own, flat in zip(self._own([each.array for each in stagings]), starts, strict=True):
            for leaf, view in zip(own, model.layout.views(flat).values(), strict=True):
                leaf[...] = view
        for staging in stagings:
            staging.send(len(staging.array))

    def _own(self, leaves: Sequence[Flat]) -> Iterator[list[Flat]]:
        """Yield the tensors of each device as views of the leaves, in the layout's order, without the padding."""
        for device in range(len(self.weights[0])):
            parts = zip(leaves, self._layout.tensors, strict=True)
            yield [leaf[(device, 0)[: 3 - len(spec.shape)]][tuple(map(slice, spec.shape))] for leaf, spec in parts]

    def flats(self) -> list[Flat]:
        """Return the weights of each device, shape (layout.size,)."""
        leaves = [read(leaf) for leaf in self.leaves]
        return [np.concatenate([part.reshape(-1) for part in own]) for own in self._own(leaves)]


class Forward:
    """Compute the outputs of a stack's first `active` devices, for batches of `rows` rows. The outputs have their own
    memory, which each call overwrites.
    """

    def __init__(self, stack: DenseStack, active: int, rows: int) -> None:
        self._weights = [weight[:active].transpose(1, 2) for weight in stack.weights]
        self._biases = [bias[:active] for bias in stack.biases]
        self._no_class = stack.no_class
        self._logit_biases = torch.empty_like(self._biases[-1])
        self.outputs = [self._no_class.new_empty(active, rows, width) for width in stack.widths[1:]]

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the last layer, shape (active, rows, out), for inputs of shape (active, rows, in).
        Padding columns, which belong to no class, contain −∞.
        """
        torch.add(self._biases[-1], self._no_class, out=self._logit_biases)
        offsets = [*self._biases[:-1], self._logit_biases]
        for offset, weight, output in zip(offsets, self._weights, self.outputs, strict=True):
            inputs = torch.baddbmm(offset, inputs, weight, out=output)
            if output is not self.outputs[-1]:
                output.relu_()
        return inputs


def _rounded(width: int) -> int:
    return -(-width // LANES) * LANES
