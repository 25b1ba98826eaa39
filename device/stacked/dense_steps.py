"""Training steps of a stack of dense networks: forward, backward and optimiser, without autograd.

The memory for results is allocated once. Besides the matrix products, two things take time: calls of
torch's functions in a step with few devices, and writing to memory in a step with many devices.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from device.stacked.dense_stack import DenseStack, Forward
from fedstrata.experiment import SgdSettings


class StackedSgd:
    """Compute the steps of torch.optim.SGD for a stack's tensors. Only the order of additions differs from torch.

    A gradient g is added to a target t: t ← beta·t + alpha·g. Without momentum and weight decay, the targets are the
    weights themselves. Otherwise the targets are velocities, which begin at zero and then change the weights.

    Weight decay without momentum uses velocities, too. A beta just below 1 for the weights would lose a small decay,
    because float32 numbers just below 1 are multiples of 6e-8.
    """

    def __init__(self, leaves: Sequence[torch.Tensor], settings: SgdSettings, rate: float) -> None:
        """Train the tensors `leaves` with these SGD settings. `rate` is the learning rate of this round."""
        self._rate = rate
        self._weight_decay = settings.weight_decay
        self.has_velocities = settings.momentum > 0 or settings.weight_decay > 0
        if self.has_velocities:
            self.targets = [torch.zeros_like(leaf) for leaf in leaves]
            self.beta, self.alpha = settings.momentum, 1.0
        else:
            self.targets = list(leaves)
            self.beta, self.alpha = 1.0, -self._rate

    def follow(self, leaf: torch.Tensor, velocity: torch.Tensor) -> None:
        """Change a tensor in place by its velocity. Weight decay is added to the velocity first."""
        if self._weight_decay:
            velocity.add_(leaf, alpha=self._weight_decay)
        leaf.add_(velocity, alpha=-self._rate)


class DenseSteps(ABC):
    """Do training steps of the first `active` devices of a stack, with batches of `rows` rows. Subclasses define how
    gradients are computed and used.
    """

    def __init__(self, stack: DenseStack, active: int, rows: int) -> None:
        self.active = active
        self._weights = [weight[:active] for weight in stack.weights]
        self._forward = Forward(stack, active, rows)
        self._slope = torch.empty_like(self._forward.outputs[-1])  # gradient of the loss by the logits
        self._minus_one = self._slope.new_full((active, rows, 1), -1.0)

    def step(self, inputs: torch.Tensor, labels: torch.Tensor, shares: torch.Tensor, logs: torch.Tensor) -> None:
        """Change the weights by the gradient of the mean cross-entropy of a batch.

        `inputs` has the shape (active, rows, in). `labels` and `shares` (each row's share in the mean) have the shape
        (active, rows, 1). The logarithm of the label's probability is written to `logs`, which has the same shape.
        """
        slope = torch.log_softmax(self._forward.logits(inputs), 2, out=self._slope)
        torch.gather(slope, 2, labels, out=logs)
        # The gradient of the mean cross-entropy: softmax, minus one at the label, times the row's share.
        slope.exp_().scatter_add_(2, labels, self._minus_one).mul_(shares)
        self._backward(inputs, slope)

    def _backward(self, inputs: torch.Tensor, slope: torch.Tensor) -> None:
        for layer in range(len(self._weights) - 1, -1, -1):
            below = self._forward.outputs[layer - 1] if layer else inputs
            further = slope
            if layer:  # before the weights change; 0 where ReLU gave 0
                further = torch.bmm(slope, self._weights[layer])
                further = torch.ops.aten.threshold_backward(further, below, 0.0)
            self._descend(layer, slope, below)
            slope = further

    @abstractmethod
    def _descend(self, layer: int, slope: torch.Tensor, below: torch.Tensor) -> None:
        """Update a layer's weights and biases. `slope` is the gradient of the loss with respect to the layer's outputs.
        `below` is the layer's input.
        """


class PlainSteps(DenseSteps):
    """Do training steps for federated learning methods that do not correct gradients. One matrix product computes the
    gradient of a layer's weights. It also adds the gradient to the weights or, if the optimiser has velocities, to the
    velocity.
    """

    def __init__(self, stack: DenseStack, optimiser: StackedSgd, active: int, rows: int) -> None:
        super().__init__(stack, active, rows)
        self._optimiser = optimiser
        self._leaves = [leaf[:active] for leaf in stack.leaves]
        self._targets = [target[:active] for target in optimiser.targets]
        self._sums = [torch.empty_like(bias) for bias in self._leaves[1::2]]

    def _descend(self, layer: int, slope: torch.Tensor, below: torch.Tensor) -> None:
        beta, alpha = self._optimiser.beta, self._optimiser.alpha
        self._targets[2 * layer].baddbmm_(slope.transpose(1, 2), below, beta=beta, alpha=alpha)
        bias, total = self._targets[2 * layer + 1], self._sums[layer]
        torch.sum(slope, 1, keepdim=True, out=total)
        if beta != 1.0:
            bias.mul_(beta)
        bias.add_(total, alpha=alpha)
        if self._optimiser.has_velocities:
            for number in (2 * layer, 2 * layer + 1):
                self._optimiser.follow(self._leaves[number], self._targets[number])
