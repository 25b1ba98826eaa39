"""How long a device's computing takes on the real clock: as long as its board would, where it is done before."""

import time

from fedstrata.clock.timeline import DeviceTimeline
from fedstrata.experiment import Experiment
from fedstrata.process.sleeping import until_ns


class DeviceClock:
    """Makes up for what is left of the modelled time; without the real clock, for nothing."""

    def __init__(self, experiment: Experiment | None = None) -> None:
        self._timeline = DeviceTimeline(experiment) if experiment is not None and experiment.is_paced else None

    def now_ns(self) -> int:
        """The time now."""
        return time.monotonic_ns()

    async def computed(self, began_ns: int, device_index: int, lps_round: int, examples: int) -> int:
        """Wait until a device would have computed in an LPS round; gives how long it took, in nanoseconds."""
        if self._timeline is None:
            return 0
        await until_ns(began_ns + self._timeline.compute_ns(device_index, lps_round, examples))
        return self.now_ns() - began_ns

    async def answered(self, began_ns: int, device_index: int, lps_round: int, examples: int) -> int:
        """Wait until a device would have worked its answer in an LPS round out, for which it has trained on so many
        examples; gives how long it took."""
        if self._timeline is None:
            return 0
        await until_ns(began_ns + self._timeline.answering_ns(device_index, lps_round, examples))
        return self.now_ns() - began_ns

    async def trained(self, began_ns: int, device_index: int, examples: int) -> None:
        """Wait until a device would have trained on so many examples for an answer before training."""
        if self._timeline is not None:
            await until_ns(began_ns + self._timeline.training_ns(device_index, examples))
