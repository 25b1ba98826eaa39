"""FedBABU (J. Oh, S. Kim and S.-Y. Yun, FedBABU: Toward Enhanced Representation for Federated Image Classification,
ICLR 2022).

The head keeps its first values, which are the same on all devices. A device trains the body only, and the bodies are
averaged. A device fine-tunes the received model before it uses and measures the model. The device deletes the
fine-tuned model after each round, so fine-tuning never changes the body.

Departure: the weight of a device is its number of examples.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from fedstrata.methods.base import (
    Channel,
    Measurement,
    Method,
    MethodSettings,
    Outcome,
    Reach,
    Trained,
    Work,
    head_of,
    one_training,
    shared_and_rest,
)
from fedstrata.models import Model

TUNING = 1  # fine-tuning has its own draws of batches


class FedBabu(Method):
    """Train and average a body (`model.shared`) with a head that stays untrained. Each device fine-tunes the received
    model before it uses the model.
    """

    class Options(MethodSettings):
        """Hold the layers that fine-tuning changes, and the number of epochs of the fine-tuning."""

        tuned: Literal["head", "all"] = "head"
        """Layers that fine-tuning changes: `head`, or `all`."""
        tuning_epochs: int = Field(default=1, ge=1)
        """Local epochs of the fine-tuning."""

    discarded = frozenset({TUNING})
    trained_examples = one_training

    def refuses(self) -> Mapping[str, str]:
        """Refuse a model without a body or without a head."""
        return {"no body and head": "the method trains only the body, with a head that does not change"}

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return two channels: the body is averaged over all devices, and the head stays on the device."""
        return shared_and_rest(model, Reach.DEVICE)

    async def local(self, work: Work) -> Outcome:
        """Train the body. If the round is measured, also measure the fine-tuned model."""
        body = await work.train(work.start, only=work.model.shared)
        used = None if body.measured is None else await work.measure((await self._tuned(work)).weights)
        return Outcome.of_received(body, used=used)

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Measure the fine-tuned model, and the received body with the untrained head."""
        return await work.measure((await self._tuned(work)).weights), await work.measure(work.start)

    async def _tuned(self, work: Work) -> Trained:
        only = head_of(work.model) if self.options.tuned == "head" else None
        return await work.train(work.start, only=only, number=TUNING, epochs=self.options.tuning_epochs)
