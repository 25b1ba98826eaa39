"""FedAvg with fine-tuning (T. Yu, E. Bagdasaryan and V. Shmatikov, Salvaging Federated Learning by Local Adaptation,
2020, section 3.1; as FedAvg-FT in many comparisons).

Devices train the global model w by FedAvg. A device trains w for some further local epochs. It uses and measures the
result v. The device deletes v after each round, so v never changes w.
"""

from pydantic import Field

from fedstrata.methods.base import Measurement, MethodSettings, Outcome, Trained, Work, one_training
from fedstrata.methods.fed_avg import FedAvg

TUNING = 1  # fine-tuning has its own draws of batches


class FedAvgFt(FedAvg):
    """Fine-tune the model of FedAvg on each device before the device uses it."""

    class Options(MethodSettings):
        """Hold the number of epochs of the fine-tuning."""

        tuning_epochs: int = Field(default=1, ge=1)
        """Local epochs of the fine-tuning."""

    discarded = frozenset({TUNING})
    trained_examples = one_training

    async def local(self, work: Work) -> Outcome:
        """Train the global model. If the round is measured, also measure the fine-tuned model."""
        trained = await work.train(work.start)
        used = None if trained.measured is None else await work.measure((await self._tuned(work)).weights)
        return Outcome.of_received(trained, used=used)

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Measure the fine-tuned model, and the global model."""
        return await work.measure((await self._tuned(work)).weights), await work.measure(work.start)

    async def _tuned(self, work: Work) -> Trained:
        return await work.train(work.start, number=TUNING, epochs=self.options.tuning_epochs)
