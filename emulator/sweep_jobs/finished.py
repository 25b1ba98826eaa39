"""Fetch the runs that pods have finished. The runs are in a bucket, or on a volume claim, which only a pod can read."""

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
    """Define how `fedstrata sweep` on this machine looks at the runs of pods, and fetches their records."""

    def is_finished(self, run: SweepRun) -> bool:
        """Return whether a run is completed."""

    def fetch(self, run: SweepRun) -> None:
        """Write the record of a finished run to the sweep's folder on this machine. Raises FedstrataError if this
        fails.
        """

    def failures(self, run: SweepRun) -> Sequence[Failure]:
        """Return the failures of a run, the latest last. All but the latest may be left out."""


class PodRuns(Protocol):
    """Define how `fedstrata sweep` on this machine connects to the place in which pods store their runs."""

    def look(self, job_uid: str) -> AbstractContextManager[FinishedRuns | None]:
        """Yield an object that knows which runs are finished now. If this is not known yet, for instance because the
        reader pod is starting, yield None. Raises AddressError if the server does not answer.
        """

    def leave(self) -> None:
        """Delete what `look` has made on Kubernetes."""


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
    """Read the runs on a volume claim. An additional pod, the reader, mounts the claim and sends the runs' records."""

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
    """Read the runs in a bucket. This needs no pod."""

    bucket: SharedBucket

    def look(self, job_uid: str) -> AbstractContextManager[FinishedRuns | None]:
        self.bucket.look_anew()
        return nullcontext(self.bucket)

    def leave(self) -> None:
        """Do nothing, because `look` makes nothing on Kubernetes."""
