"""FedRoD (H.-Y. Chen and W.-L. Chao, On Bridging Generic and Personalized Federated Learning for Image Classification,
ICLR 2022), with a linear head on each device.

The model has features z, and a generic head G, which is its last layer. Device k also has a head P_k of its own. A
local step changes both with one batch:

    features and G   minimise the balanced softmax − log( n_y exp(G_y(z)) / Σ_c n_c exp(G_c(z)) ),
    P_k              minimises the cross-entropy of G(z) + P_k(z), while z and G stay fixed.

n_c is the device's number of examples with label c. The servers average the features and G. P_k stays on the device,
which uses and measures G + P_k. The sum of two dense layers is a dense layer, so G + P_k is a model of the same form.

Departures: P_k begins at 0, so a device begins with the generic model. The weight of a device is its number of
examples.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedstrata.methods.base import ForwardPass, Measurement, Outcome, Steps, Trained, Work, one_training
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.models import Model
from fedstrata.tensors.layout import Flat
from fedstrata.tensors.processor import read

if TYPE_CHECKING:
    import torch

HEAD = "head"
OWN_HEAD = 1  # the device's own head has its own optimiser state


@dataclass(frozen=True)
class Balanced:
    """Replace the loss of a batch by the balanced softmax, and keep the forward pass."""

    log_counts: "torch.Tensor"  # logarithm of the number of examples per label, shape (num_classes,)
    passes: list[ForwardPass] = field(default_factory=list)

    def __call__(self, loss: "torch.Tensor", found: ForwardPass) -> "torch.Tensor":
        """Return the mean balanced softmax of the batch."""
        from torch.nn.functional import cross_entropy

        self.passes.append(found)
        return cross_entropy(found.outputs + self.log_counts, found.targets)


class FedRod(FedAvg):
    """Train a generic model by a balanced loss and FedAvg, and on each device an additional head by the device's own
    loss. Each device uses the sum of both heads.
    """

    has_personal_state = True
    trained_examples = one_training

    @property
    def needs_labels(self) -> bool:
        """True: the loss is balanced by the device's number of examples per label."""
        return True

    def refuses(self) -> Mapping[str, str]:
        """Refuse a model without a dense last layer."""
        return {"no dense last layer": "the method adds a second head to the last layer"}

    def _own(self, work: Work) -> Flat:
        """Return the device's own head: a vector of a whole model that is 0 except in the last layer."""
        own: Flat = work.personal.get(HEAD, np.zeros_like(work.start))
        return own

    async def local(self, work: Work) -> Outcome:
        """Train the generic model and the device's own head on the same batches."""
        own = self._own(work)
        trained, following = await work.compute(lambda: self._trained(work, own))
        used = None if trained.measured is None else await work.measure(work.start + own)
        return Outcome.of_received(trained, used=used, personal={HEAD: following})

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Measure the model with the sum of both heads, which the device uses, and the generic model."""
        return await work.measure(work.start + self._own(work)), await work.measure(work.start)

    def _trained(self, work: Work, own: Flat) -> tuple[Trained, Flat]:
        generic, mine = work.steps(work.start), work.steps(own, number=OWN_HEAD)
        counts = np.bincount(work.examples.labels, minlength=self.facts.num_classes)
        with np.errstate(divide="ignore"):  # a label without examples has a share of 0
            log_counts = work.model.processor.tensor(np.log(counts).astype(np.float32))
        for batch in generic.batches():
            balanced = Balanced(log_counts)
            gradient = generic.gradient(generic.weights, batch, balanced)
            mine.move(head_gradient(work.model, mine, balanced.passes[0]))
            generic.move(gradient)
        following = own.copy()
        following[: work.model.trainable.size] = read(mine.weights)
        return generic.trained(), following


def head_gradient(model: Model, mine: Steps, found: ForwardPass) -> "torch.Tensor":
    """Return the gradient of the loss of both heads together, with respect to the device's own head, shape
    (trainable.size,). It is 0 outside the last layer. `mine` has the own head, and `found` is the forward pass of the
    generic model.
    """
    import torch
    from torch.nn.functional import cross_entropy, linear

    weights = mine.weights.requires_grad_()
    layout = model.trainable
    parts = torch.split(weights, [tensor.size for tensor in layout.tensors])
    named = {tensor.name: part.view(tensor.shape) for tensor, part in zip(layout.tensors, parts, strict=True)}
    bias = next((named[name] for name in model.last_layer if name != model.last_weight), None)
    own = linear(found.features.detach(), named[model.last_weight], bias)
    (gradient,) = torch.autograd.grad(cross_entropy(found.outputs.detach() + own, found.targets), weights)
    return gradient
