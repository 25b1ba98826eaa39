"""The place where the processes of a sweep share its runs: its interface, and a folder as the first such place."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from emulator.sweeps.claims import Claim, Failure, failures
from emulator.sweeps.file import Sweep, SweepRun
from emulator.sweeps.folder import joined


class RunClaim(Protocol):
    """Hold a run for this process until it is released. If the process dies, another process gets the run."""

    def finish(self) -> None:
        """Give the run's complete record to the other processes. Raises FedstrataError if they cannot get it."""

    def note(self, failure: Failure) -> None:
        """Tell the other processes that the run failed. Raises FedstrataError if this is impossible."""

    def release(self) -> None:
        """End the claim."""


class SweepStore(Protocol):
    """Define what a sweep needs of the place where its processes share the runs. A call may take some seconds."""

    @property
    def folder(self) -> Path:
        """Return the folder of this process. Its runs write to this folder. It gets all records and the tables."""

    def joined(self, sweep: Sweep) -> AbstractContextManager[None]:
        """Use the place during the block, together with other processes of the same sweep. Raises FedstrataError if the
        place cannot be used.
        """

    def claim(self, run: SweepRun) -> RunClaim | None:
        """Return a claim on a run; None if another process has it. If the run is finished, its record is in the folder
        when this returns.

        Raises:
            FedstrataError: the run cannot be claimed.
        """

    def failures(self, run: SweepRun) -> Sequence[Failure]:
        """Return the failures of a run, the earliest first. Raises FedstrataError if the place does not answer."""


@dataclass(frozen=True)
class SharedFolder:
    """Share the runs in a folder that all processes see. Claims are locks of the kernel."""

    folder: Path

    def joined(self, sweep: Sweep) -> AbstractContextManager[None]:
        return joined(self.folder, sweep)

    def claim(self, run: SweepRun) -> Claim | None:
        return Claim.of(self.folder / run.path)

    def failures(self, run: SweepRun) -> Sequence[Failure]:
        return failures(self.folder / run.path)
