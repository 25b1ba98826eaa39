"""Methods whose devices use a corrected model, and measure it with or without the received model."""

from fedstrata.methods import Measurement, Work
from fedstrata.methods.fed_avg import FedAvg


class Corrected(FedAvg):
    """Measure only the corrected model, which is the received model with all values halved."""

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Return the measurement of the corrected model."""
        return await work.measure(work.start / 2), None


class MeasuredTwice(Corrected):
    """Measure the received model, too."""

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Return the measurements of both models."""
        return (await super().measure(work))[0], await work.measure(work.start)
