"""FedRep (L. Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021).

In a round, device k trains its head h_k for some epochs on the received body φ^t, which stays fixed. Then it trains the
body while the new head stays fixed (Algorithm 1). The bodies are averaged, and the heads stay on their devices.

Departures: the weight of a device is its number of examples. In the paper all devices have the same weight. All heads
begin with the same weights, from the experiment's seed.
"""

from collections.abc import Mapping

from pydantic import Field

from fedstrata.methods.base import Channel, Method, MethodSettings, Outcome, Reach, Work, head_of, shared_and_rest
from fedstrata.models import Model

BODY_TRAINING = 1  # the body has its own draws of batches


class FedRep(Method):
    """Average a body (`model.shared`) over all devices, and train each device's own head before the body."""

    class Options(MethodSettings):
        """Hold the number of epochs for which the head is trained in a round."""

        head_epochs: int | None = Field(default=None, ge=1)
        """Epochs of the head per round; without this key, the same number as of the body."""

    def refuses(self) -> Mapping[str, str]:
        """Refuse a model without a body or without a head."""
        return {"no body and head": "the method trains the body and the head one after the other"}

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return two channels: the body is averaged over all devices, and the head stays on the device."""
        return shared_and_rest(model, Reach.DEVICE)

    async def local(self, work: Work) -> Outcome:
        """Train the head with the body fixed, then the body with the head fixed."""
        head = await work.train(work.start, only=head_of(work.model), epochs=self.options.head_epochs)
        body = await work.train(head.weights, only=work.model.shared, number=BODY_TRAINING)
        return Outcome(weights=body.weights, train_loss=body.train_loss, measured=head.measured)

    def trained_examples(self, examples: int, lps_round: int) -> int:
        """Return the sum of the examples in the trainings of head and body."""
        training, epochs = self.facts.training, self.options.head_epochs
        body = training.trained_examples(examples)
        return body + (epochs * training.epoch_examples(examples) if epochs is not None else body)
