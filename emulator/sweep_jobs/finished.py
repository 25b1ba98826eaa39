"""Fetch the runs that pods have finished: through a pod that reads the volume claim, or from a bucket."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from emulator.sweep_jobs.api import SweepApi
from emulator.sweep_jobs.objects import SweepObjects
from emulator.sweep_jobs.records import BegunRuns, fetch_record
from emulator.sweeps.bucket import SharedBucket
from emulator.sweeps.claims import Failure
from emulator.sweeps.file import SweepRun
from fedstrata.errors import AddressError


class FinishedRuns(Protocol):
    """Define what the command asks about the runs of pods."""

    def is_finished(self, run: SweepRun) -> bool:
        """Return whether a run is completed."""

    def fetch(self, run: SweepRun) -> None:
        """Write the record of a finished run to the command's folder. Raises FedstrataError if this fails."""

    def failures(self, run: SweepRun) -> Sequence[Failure]:
        """Return the known failures of a run, the last one at the end."""


class PodRuns(Protocol):
    """Define the way to the runs of pods."""

    def look(self, job_uid: str) -> AbstractContextManager[FinishedRuns | None]:
        """Yield the runs finished so far, or None if they cannot be known yet. Raises AddressError if no server
        answers.
        """

    def leave(self) -> None:
        """End the way."""


@dataclass(frozen=True)
class _Read:
    address: str  # of the reader
    begun: BegunRuns
    folder: Path

    def is_finished(self, run: SweepRun) -> bool:
        return self.begun.is_completed(run.path)

    def fetch(self, run: SweepRun) -> None:
        fetch_record(self.address, run.path, self.folder / run.path)

    def failures(self, run: SweepRun) -> Sequence[Failure]:
        last = self.begun.failure(run.path)
        return [] if last is None else [last]


@dataclass(frozen=True)
class ClaimRuns:
    """Read the runs on a claim through a pod of its own."""

    api: SweepApi
    objects: SweepObjects
    folder: Path

    @contextmanager
    def look(self, job_uid: str) -> Iterator[FinishedRuns | None]:
        if not self.api.has_reader(self.objects, job_uid):
            yield None
            return
        with self.api.reader_address(self.objects) as address:
            yield _Read(address, BegunRuns.at(address), self.folder)

    def leave(self) -> None:
        with suppress(AddressError):  # it ends by itself
            self.api.delete_reader(self.objects)


@dataclass(frozen=True)
class BucketRuns:
    """Read the runs in a bucket."""

    bucket: SharedBucket

    def look(self, job_uid: str) -> AbstractContextManager[FinishedRuns | None]:
        self.bucket.look_anew()
        return nullcontext(self.bucket)

    def leave(self) -> None:
        """Do nothing."""
