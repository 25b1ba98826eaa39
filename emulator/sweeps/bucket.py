"""A bucket in which processes share the runs of a sweep. Each process works in a folder of its own.

The bucket has two objects per run. The record, `.tar`, is written once, by the first process that has finished the run.
The claim, `.claim`, is a lease: its owner writes it anew all the time. A process that sees the same version of a claim
for a minute takes the lease over, so no clocks are compared. Every write is under the condition that nobody else has
written since the writer looked. If an owner pauses longer than its lease, two processes do the run, and both use the
first record.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tarfile import TarError
from threading import Event, Lock, Thread

from emulator.runs.archive import read_archive, write_archive
from emulator.sweeps.claims import Claim, Failure
from emulator.sweeps.file import Sweep, SweepRun
from emulator.sweeps.folder import RoundStart, completed_record, joined, standing
from emulator.sweeps.s3 import Bucket, temporary_file
from emulator.sweeps.store import RunClaim
from fedstrata.errors import AddressError, FedstrataError, OutputError, PayloadError

LEASE_S, RENEW_S = 60.0, 15.0
LOOK_S = 5.0  # between two listings of the bucket
AGAIN_S = 2.0  # before a failed call is repeated
AWAY_S = 600.0  # how long a bucket may stay silent before a call fails


@dataclass(frozen=True, kw_only=True)
class _Lease:
    """Hold the content of a claim."""

    is_held: bool
    failures: tuple[Failure, ...]
    owner: str = ""  # a random token of the process that has the claim

    @classmethod
    def read(cls, content: bytes) -> "_Lease":
        """Return the claim in an object's content. If the content is not a claim, return a free claim."""
        try:
            said = json.loads(content)
            failures = ((str(each["reason"]), float(each["seconds"])) for each in said["failures"])
            return cls(
                is_held=bool(said["is_held"]), owner=str(said["owner"]),
                failures=tuple(Failure(reason=reason, seconds=seconds) for reason, seconds in failures),
            )  # fmt: skip
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return cls(is_held=False, failures=())

    def text(self) -> bytes:
        """Return the content to write. A random number makes it unique, so the object's tag is of this write only."""
        return json.dumps({**asdict(self), "write": secrets.token_hex(16)}).encode()

    def write(self, bucket: Bucket, name: str, over: str | None) -> str | None:
        """Write the claim over a version. Return its tag, or None if another process has written."""
        tag = bucket.put(name, self.text(), over=over)
        if tag is None:
            found, there = bucket.content(name)
            if _Lease.read(found).owner == self.owner:  # an earlier write was ours; only its reply was lost
                return bucket.put(name, self.text(), over=there)
        return tag


class _BucketClaim:
    """Hold a run in the bucket, and renew the lease until the end."""

    def __init__(
        self, bucket: Bucket, name: str, *, tag: str, lease: _Lease, local: Claim, finish: Callable[[], None]
    ) -> None:
        self._bucket, self._name, self._tag, self._lease = bucket, name, tag, lease
        self._local, self._finish = local, finish
        self._is_over = Event()
        self._renewing = Thread(target=self._renew, daemon=True)
        self._renewing.start()

    def finish(self) -> None:
        """Give the record to the bucket. Raises AddressError if the bucket is silent for long."""
        began = time.monotonic()
        while True:
            try:
                self._finish()
                return
            except AddressError:
                if time.monotonic() - began > AWAY_S or self._is_over.wait(AGAIN_S):
                    raise

    def note(self, failure: Failure) -> None:
        """End the lease with a failure. Raises AddressError if the bucket does not get the failure."""
        if self._end((*self._lease.failures, failure)) is None:
            raise AddressError(
                f"this failure could not be written to {self._bucket}, because another process has taken the run over"
            )

    def release(self) -> None:
        if not self._is_over.is_set():
            with suppress(FedstrataError):  # otherwise the lease ends by itself
                self._end(self._lease.failures)
        self._local.release()

    def _end(self, failures: tuple[Failure, ...]) -> str | None:
        self._is_over.set()
        self._renewing.join()
        return replace(self._lease, is_held=False, failures=failures).write(self._bucket, self._name, self._tag)

    def _renew(self) -> None:
        pause = RENEW_S
        while not self._is_over.wait(pause):
            pause = AGAIN_S
            with suppress(FedstrataError):  # the next attempt may still be in time
                tag = self._lease.write(self._bucket, self._name, self._tag)
                if tag is None:  # another process has taken the run over
                    return
                self._tag, pause = tag, RENEW_S


class SharedBucket:
    """Share the runs in a bucket."""

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self._bucket, self.folder = bucket, folder
        self._tags: dict[str, str] = {}  # by object's name: its tag at the last look
        self._since: dict[str, float] = {}  # by name: since when this process has always seen this tag
        self._looked = self._answered = -AWAY_S
        self._silent_since: float | None = None  # None: the last look succeeded
        self._looking = Lock()  # runs end in different threads
        self._leases: dict[str, tuple[_Lease, str]] = {}  # by name: the content and the tag of a claim

    @contextmanager
    def joined(self, sweep: Sweep) -> Iterator[None]:
        """Use the bucket and the folder during the block. Complete records of the folder go to the bucket at once."""
        self._bucket.check()
        with joined(self.folder, sweep):
            for run in sweep.runs:
                if completed_record(self.folder / run.path) is not None:
                    self._put(run)
            yield

    def claim(self, run: SweepRun) -> RunClaim | None:
        """Return a claim on a run, or None. Raises FedstrataError if the bucket is silent for long."""
        local = Claim.of(self.folder / run.path)
        if local is None:
            return None
        with ExitStack() as stack:
            stack.callback(local.release)
            try:
                claim = local if self.is_finished(run) else self._leased(run, local)
                if claim is not None:
                    stack.callback(claim.release)
                    if self.is_finished(run) and completed_record(self.folder / run.path) is None:
                        self.fetch(run)
                    stack.pop_all()
            except AddressError:
                self._silent_since = self._silent_since or time.monotonic()
                if time.monotonic() - self._silent_since > AWAY_S:
                    raise
                return None
            return claim

    def failures(self, run: SweepRun) -> Sequence[Failure]:
        """Return the failures of a run, as far as the bucket says them."""
        name = _name(run, "claim")
        tag = self._look().get(name)
        return () if tag is None else self._lease(name, tag)[0].failures

    def look_anew(self) -> None:
        """Let the next question be answered by a new look."""
        self._looked = -AWAY_S

    def is_finished(self, run: SweepRun) -> bool:
        """Return whether the bucket has the record of a run."""
        return _name(run, "tar") in self._look()

    def fetch(self, run: SweepRun) -> None:
        """Write the record of a finished run to the folder.

        Raises:
            OutputError: the object is not the record of this run, or the folder cannot be written.
            AddressError: the bucket does not answer.
        """
        name, folder = _name(run, "tar"), self.folder / run.path
        try:
            with self._bucket.opened(name) as source:
                read_archive(source, folder)
        except (PayloadError, TarError) as error:
            raise self._damaged(name, str(error)) from None
        if standing(folder, run.experiment) is not RoundStart.DONE:
            raise self._damaged(name, "the run is not complete")

    def _damaged(self, name: str, why: str) -> OutputError:
        return OutputError(
            f"object {name} in {self._bucket} is not a complete record of its run: {why}; delete this object"
        )

    def _leased(self, run: SweepRun, local: Claim) -> _BucketClaim | None:
        """Return a claim with a lease, or None. The next look is a new one, because an owner may just have finished."""
        name, failures = _name(run, "claim"), tuple[Failure, ...]()
        tag = self._tags.get(name)
        if tag is not None:
            found, tag = self._lease(name, tag)
            if found.is_held and self._answered - self._since.get(name, self._answered) <= LEASE_S:
                return None
            failures = found.failures
        lease = _Lease(is_held=True, failures=failures, owner=secrets.token_hex(16))
        tag = lease.write(self._bucket, name, tag)
        self.look_anew()
        if tag is None:
            return None
        return _BucketClaim(self._bucket, name, tag=tag, lease=lease, local=local, finish=lambda: self._put(run))

    def _look(self) -> dict[str, str]:
        """Return the tags of all objects, as they were a few seconds ago or later."""
        with self._looking:
            if time.monotonic() - self._looked > LOOK_S:
                tags, before, since = self._bucket.objects(), self._tags, self._since
                now = time.monotonic()
                if now - self._answered > LEASE_S / 2:  # owners could not reach the bucket either
                    before = {}
                self._since = {name: since[name] if before.get(name) == tag else now for name, tag in tags.items()}
                self._tags, self._looked, self._answered, self._silent_since = tags, now, now, None
            return self._tags

    def _lease(self, name: str, tag: str) -> tuple[_Lease, str]:
        """Return the content of a claim and its tag. A version is read once."""
        known = self._leases.get(name)
        if known is None or known[1] != tag:
            content, there = self._bucket.content(name)
            if there != tag:  # it was written since the last look
                self._tags[name], self._since[name] = there, time.monotonic()
            known = self._leases[name] = _Lease.read(content), there
        return known

    def _put(self, run: SweepRun) -> None:
        """Give the folder and the bucket the same record of a run: the record that the bucket got first."""
        name = _name(run, "tar")
        with temporary_file() as file:
            write_archive(self.folder / run.path, file)
            file.seek(0)
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            if self._look().get(name) == f'"{digest}"':
                return
            file.seek(0)
            if self._bucket.put(name, file) is None:
                self.fetch(run)


def shared_bucket(address: str, folder: Path) -> SharedBucket:
    """Return the bucket at an address. Raises FedstrataError if the address or a setting is wrong."""
    return SharedBucket(Bucket(address), folder)


def _name(run: SweepRun, kind: str) -> str:
    """Return the name of a run's object. Runs of other experiments have other names."""
    return f"{run.path.as_posix()}/{run.experiment.digest[:12]}.{kind}"
