"""FedALA (J. Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023, arXiv
2212.01197).

Device i keeps the model Θ_i that it trained last. In the p highest layers, it first mixes Θ_i with the received model
Θ, element by element. It takes all lower layers from Θ:

    Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ W_i,   each number of W_i in [0, 1],
    W_i ← clip(W_i − η ∇f(Θ̂_i) ⊙ (Θ − Θ_i), 0, 1)   for each batch of a sample of its examples.

Then the device trains Θ̂_i, and the servers average the trained models. W_i begins at 1, and stays on the device. The
device learns W_i in `first_epochs` passes over the sample at first, and in one pass in later rounds. In its first round
a device trains the received model. It uses and measures Θ̂_i.

Departures: in the paper the first learning of W_i lasts until it converges. The sample is the first share s of the
batches of a local epoch, or fewer if the round has fewer local steps.
"""

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedstrata.methods.base import Arrays, Measurement, MethodSettings, Outcome, Work
from fedstrata.methods.fed_avg import FedAvg
from fedstrata.tensors.layout import Flat, Layout
from fedstrata.tensors.processor import read

if TYPE_CHECKING:
    import torch

MODEL, MIX = "model", "mix"
MIXING, MIXING_TO_MEASURE = 1, 2  # numbers of trainings: for the next training, and for a model that is only measured


class FedAla(FedAvg):
    """Mix the received model with the device's own model, element by element, before each training. Each device learns
    the weights of the mix on its own examples, and uses the mix.
    """

    class Options(MethodSettings):
        """Hold the layers that are mixed, and how the weights of the mix are learned."""

        layers: int = Field(default=1, ge=1)
        """Number p of the highest layers that are mixed."""
        share: float = Field(default=0.8, gt=0, le=1)
        """Share s of a device's examples on which it learns the mix."""
        rate: float = Field(default=1.0, gt=0)
        """Learning rate η of the weights of the mix."""
        first_epochs: int = Field(default=10, ge=1)
        """Passes over these examples when a device first learns its mix."""

    has_personal_state = True
    discarded = frozenset({MIXING_TO_MEASURE})

    async def local(self, work: Work) -> Outcome:
        """Learn the mix, and train the mixed model."""
        start, mix = await self._mixed(work, MIXING)
        trained = await work.train(start)
        received = None if trained.measured is None else await work.measure(work.start)
        return Outcome(
            weights=trained.weights,
            train_loss=trained.train_loss,
            measured=trained.measured,
            measured_received=received,
            personal={MODEL: trained.weights, **mix},
        )

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Measure the mix, which the device uses, and the received model."""
        start, _ = await self._mixed(work, MIXING_TO_MEASURE)
        return await work.measure(start), await work.measure(work.start)

    async def _mixed(self, work: Work, number: int) -> tuple[Flat, Arrays]:
        """Return the mix of the received model and the device's own model, and the weights of the mix as personal
        state. If the device has no own model yet, return the received model and no state. `number` is as in
        `Work.steps`.
        """
        if MODEL not in work.personal:
            return work.start, {}
        return await work.compute(lambda: self._learned(work, number))

    def _learned(self, work: Work, number: int) -> tuple[Flat, Arrays]:
        """Learn the weights of the mix. Return the mixed model, shape (size,), and the weights as personal state.
        `number` is as in `Work.steps`.
        """
        steps, tensor, size = (
            work.steps(work.start, number=number),
            work.model.processor.tensor,
            work.model.trainable.size,
        )
        own, received = tensor(work.personal[MODEL][:size]), tensor(work.start[:size])
        difference, is_mixed = received - own, tensor(highest(work.model.trainable, self.options.layers))
        mix = tensor(work.personal.get(MIX, np.ones(size, np.float32)))

        def mixed() -> "torch.Tensor":
            return (own + difference * mix).where(is_mixed, received)

        of_epoch = self.facts.training.batches(len(work.examples))
        sample = list(islice(steps.batches(), max(1, round(self.options.share * of_epoch))))
        for batch in sample * (1 if MIX in work.personal else self.options.first_epochs):
            slope = steps.gradient(mixed(), batch) * difference
            mix = (mix - self.options.rate * slope).clamp(0, 1).where(is_mixed, mix)
        start = work.start.copy()
        start[:size] = read(mixed())
        return start, {MIX: read(mix)}


def highest(layout: Layout, layers: int) -> NDArray[np.bool_]:
    """Return whether each element of a vector belongs to the last `layers` layers, shape (layout.size,). Tensors with
    the same name before the last dot form a layer.
    """
    of_tensors = [tensor.name.rpartition(".")[0] or tensor.name for tensor in layout.tensors]
    chosen = list(dict.fromkeys(of_tensors))[-layers:]
    return np.repeat([name in chosen for name in of_tensors], [tensor.size for tensor in layout.tensors])
