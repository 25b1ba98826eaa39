"""What the emulator asks of the place where the three tiers run."""

from typing import Protocol

from fedstrata.experiment import Experiment


class Backend(Protocol):
    """Processes on this machine, or pods; a run is followed the same way on either."""

    async def start(self, experiment: Experiment) -> str:
        """Bring up the GPS and the devices; gives the GPS's address, which answers by then."""

    async def scale_lps(self, replicas: int) -> None:
        """Have at least this many LPSs; those that are there stay."""

    async def failure(self) -> BaseException:
        """Waits until a part of the run can no longer be kept alive, and says why."""

    async def stop(self) -> None:
        """End all that was started."""
