"""FedProx (Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020): an additional term of the loss
limits how far local training moves the weights.

A local step minimises F(w) + mu / 2 · ‖w − w^t‖², where w^t are the received weights (Eq. 2 of the paper).
"""

from fedstrata.methods.base import MethodSettings, NonNegativeFloat, Outcome, Pull, Work, one_training
from fedstrata.methods.fed_avg import FedAvg


class FedProx(FedAvg):
    """Pull the weights of each device towards the received weights during training, and average as FedAvg does."""

    class Options(MethodSettings):
        """Hold μ, the strength of the pull."""

        mu: NonNegativeFloat = 0.01
        """Strength μ of the pull towards the weights received; 0 is FedAvg."""

    trained_examples = one_training

    async def local(self, work: Work) -> Outcome:
        """Train with gradients corrected by mu · (w − w^t)."""
        return Outcome.of(await work.train(work.start, correct=Pull(self.options.mu), beside=(work.start,)))
