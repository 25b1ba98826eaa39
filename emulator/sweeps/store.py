"""Define the interface of a store in which the processes of a sweep share the runs. Implement a store that is a shared
folder.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from emulator.sweeps.claims import Claim, Failure, failures
from emulator.sweeps.file import Sweep, SweepRun
from emulator.sweeps.sweep_folder import joined


class RunClaim(Protocol):
    """Reserve a run for this process until the claim is released. If the process dies, another process can claim the
    run.
    """

    def finish(self) -> None:
        """Make the run's complete record available to the other processes. Raises FedstrataError if this is
        impossible.
        """

    def note(self, failure: Failure) -> None:
        """Tell the other processes that the run failed. Raises FedstrataError if this is impossible."""

    def release(self) -> None:
        """End the claim."""


class SweepStore(Protocol):
    """Define what a sweep needs from the store in which its processes share the runs. A call may take some seconds."""

    @property
    def folder(self) -> Path:
        """The sweep's folder for this process. The runs of this process, the tables, and the records of other
        processes' runs are written to this folder.
        """

    def within(self, name: str) -> "SweepStore":
        """Return a part of this store for another sweep. `name` is the name of the part."""

    def joined(self, sweep: Sweep) -> AbstractContextManager[None]:
        """Use the store during the block, together with other processes of the same sweep. Raises FedstrataError if the
        store cannot be used.
        """

    def claim(self, run: SweepRun) -> RunClaim | None:
        """Claim a run, and return the claim. If another process has the run, return None. If the run is already
        finished, its record is in the folder when this call returns.

        Raises:
            FedstrataError: the run cannot be claimed.
        """

    def failures(self, run: SweepRun) -> Sequence[Failure]:
        """Return the failures of a run, the earliest first. Raises FedstrataError if the store does not answer."""


@dataclass(frozen=True)
class SharedFolder:
    """Share the runs in a folder that all processes can access. The claim of a run is a file lock, which the operating
    system ends when the process dies.
    """

    folder: Path

    def within(self, name: str) -> "SharedFolder":
        return SharedFolder(self.folder / name)

    def joined(self, sweep: Sweep) -> AbstractContextManager[None]:
        return joined(self.folder, sweep)

    def claim(self, run: SweepRun) -> Claim | None:
        return Claim.of(self.folder / run.path)

    def failures(self, run: SweepRun) -> Sequence[Failure]:
        return failures(self.folder / run.path)
