"""Share the runs of a sweep through a bucket. Each process works in a folder of its own.

The bucket has two objects per run. The record, `.tar`, is written once, by the first process that has finished the run.
The claim, `.claim`, is a lease: while a process works on the run, it writes the claim again every 15 seconds.

If a claim has not changed for a minute, another process may take the run over. Each process measures this minute with
its own clock, so the clocks of machines need not agree. A write fails if another process has written the object in the
meantime. If a process pauses for longer than a minute, another process may do the same run, too. Both processes then
use the record that was written first.
"""

import hashlib
import json
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tarfile import TarError
from threading import Event, Lock, Thread

from emulator.runs.archive import read_archive, write_archive
from emulator.sweeps.claims import Claim, Failure
from emulator.sweeps.file import Sweep, SweepRun
from emulator.sweeps.s3 import Bucket, temporary_file
from emulator.sweeps.store import RunClaim
from emulator.sweeps.sweep_folder import FolderState, completed_record, joined, state_of
from fedstrata.errors import AddressError, FedstrataError, OutputError, PayloadError

LEASE_S, RENEW_S = 60.0, 15.0
LOOK_S = 5.0  # least time between two listings of the bucket
AGAIN_S = 2.0  # before a failed call is repeated
AWAY_S = 600.0  # how long a bucket may stay silent before a call fails


@dataclass(frozen=True, kw_only=True)
class _Lease:
    """Hold the content of a claim: whether a process has the run now, and the run's failures."""

    is_held: bool
    failures: tuple[Failure, ...]
    owner: str = ""  # a random token of the process that has the claim

    @classmethod
    def read(cls, content: bytes) -> "_Lease":
        """Return the claim in the content of an object. If the content is not a claim, return a claim that no process
        holds.
        """
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
        """Return the bytes to write. They contain a random number, so no other write has the same bytes, nor the same
        tag.
        """
        return json.dumps({**asdict(self), "write": secrets.token_hex(16)}).encode()

    def write(self, bucket: Bucket, name: str, over: str | None) -> str | None:
        """Replace the version of the claim that has the tag `over`. If `over` is None, write a new claim. Return the
        tag of the written version. If another process has written the claim first, write nothing, and return None.
        """
        tag = bucket.put(name, self.text(), over=over)
        if tag is None:
            found, there = bucket.content(name)
            if _Lease.read(found).owner == self.owner:  # an earlier write was ours; only its reply was lost
                return bucket.put(name, self.text(), over=there)
        return tag


class _BucketClaim:
    """Reserve a run in the bucket for this process. A thread renews the lease until the claim ends."""

    def __init__(
        self, bucket: Bucket, name: str, *, tag: str, lease: _Lease, local: Claim, finish: Callable[[], None]
    ) -> None:
        self._bucket, self._name, self._tag, self._lease = bucket, name, tag, lease
        self._local, self._finish = local, finish
        self._is_over = Event()
        self._renewing = Thread(target=self._renew, daemon=True)
        self._renewing.start()

    def finish(self) -> None:
        """Write the run's record to the bucket. If the bucket does not answer, try again for ten minutes. Then raise
        AddressError.
        """
        began = time.monotonic()
        while True:
            try:
                self._finish()
                return
            except AddressError:
                if time.monotonic() - began > AWAY_S or self._is_over.wait(AGAIN_S):
                    raise

    def note(self, failure: Failure) -> None:
        """Write a failure of the run to the claim, and end the lease. Raises FedstrataError if the failure cannot be
        written.
        """
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


class _Listing:
    """List the objects in the bucket at most once every five seconds, and remember the list."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._tags: dict[str, str] = {}  # by object's name: its tag
        self._since: dict[str, float] = {}  # by object's name: since when this process has always seen this tag
        self._leases: dict[str, tuple[_Lease, str]] = {}  # by claim's name: its content at a tag, and this tag
        self._listed_at = -math.inf
        self._is_outdated = True
        self._listing = Lock()  # runs end in different threads

    def forget(self) -> None:
        """List the bucket again at the next call that needs a list."""
        self._is_outdated = True

    def tag(self, name: str) -> str | None:
        """Return the tag of an object. If the bucket has no such object, return None."""
        with self._listing:
            if self._is_outdated or time.monotonic() - self._listed_at > LOOK_S:
                self._list()
            return self._tags.get(name)

    def _list(self) -> None:
        tags, before, since = self._bucket.objects(), self._tags, self._since
        now = time.monotonic()
        if now - self._listed_at > LEASE_S / 2:  # owners could not reach the bucket either
            before = {}
        self._since = {name: since[name] if before.get(name) == tag else now for name, tag in tags.items()}
        self._tags, self._listed_at, self._is_outdated = tags, now, False

    def lease(self, name: str) -> tuple[_Lease, str] | None:
        """Return the content of a claim, and its tag. If the bucket has no such claim, return None. The content is
        fetched only if the tag is new.
        """
        tag = self.tag(name)
        if tag is None:
            return None
        known = self._leases.get(name)
        if known is None or known[1] != tag:
            content, newest = self._bucket.content(name)
            if newest != tag:  # the claim was written after the listing
                self._tags[name], self._since[name] = newest, time.monotonic()
            known = self._leases[name] = _Lease.read(content), newest
        return known

    def is_expired(self, name: str) -> bool:
        """Return whether a claim has not changed for longer than a lease."""
        return self._listed_at - self._since.get(name, self._listed_at) > LEASE_S


class SharedBucket:
    """Share the runs of a sweep through a bucket."""

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self._bucket, self.folder = bucket, folder
        self._listing = _Listing(bucket)
        self._silent_since: float | None = None  # None: the bucket has answered the last claim

    def within(self, name: str) -> "SharedBucket":
        return SharedBucket(self._bucket.within(name), self.folder / name)

    @contextmanager
    def joined(self, sweep: Sweep) -> Iterator[None]:
        """Use the bucket, and the sweep's folder on this machine, during the block. Before the block runs, copy the
        complete records in the folder to the bucket.
        """
        self._bucket.check()
        with joined(self.folder, sweep):
            for run in sweep.runs:
                if completed_record(self.folder / run.path) is not None:
                    self._put(run)
            yield

    def claim(self, run: SweepRun) -> RunClaim | None:
        """Claim a run, and return the claim. If another process has the run, or if the bucket does not answer now,
        return None. Raises FedstrataError if the bucket has not answered for ten minutes.
        """
        local, claim = Claim.of(self.folder / run.path), None
        if local is None:
            return None
        try:
            claim = self._claim_in_bucket(run, local)
            self._silent_since = None
        except AddressError:
            self._silent_since = self._silent_since or time.monotonic()
            if time.monotonic() - self._silent_since > AWAY_S:
                raise
        finally:
            if claim is None:
                local.release()
        return claim

    def _claim_in_bucket(self, run: SweepRun, local: Claim) -> RunClaim | None:
        """Return the claim of a run that is claimed on this machine. If another process has the lease, return None. The
        record of a finished run needs no lease. It is copied to the folder.
        """
        claim = local if self.is_finished(run) else self._take_lease(run, local)
        try:
            if claim is not None and self.is_finished(run) and completed_record(self.folder / run.path) is None:
                self.fetch(run)
        except BaseException:
            if claim is not None:
                claim.release()
            raise
        return claim

    def _take_lease(self, run: SweepRun, local: Claim) -> _BucketClaim | None:
        """Take the lease of a run, and return the claim. If another process has the lease, return None.

        Another process may have finished the run just before the claim was written. So after writing the claim, this
        method forgets the listing. The caller then sees from a new listing whether the run is finished.
        """
        name, failures, tag = _name(run, "claim"), tuple[Failure, ...](), None
        if (found := self._listing.lease(name)) is not None:
            last, tag = found
            if last.is_held and not self._listing.is_expired(name):
                return None
            failures = last.failures
        lease = _Lease(is_held=True, failures=failures, owner=secrets.token_hex(16))
        tag = lease.write(self._bucket, name, tag)
        self.look_anew()
        if tag is None:
            return None
        return _BucketClaim(self._bucket, name, tag=tag, lease=lease, local=local, finish=lambda: self._put(run))

    def failures(self, run: SweepRun) -> Sequence[Failure]:
        """Return the failures of a run, which the run's claim in the bucket lists, the earliest first."""
        found = self._listing.lease(_name(run, "claim"))
        return () if found is None else found[0].failures

    def look_anew(self) -> None:
        """Forget the last listing of the bucket. The next call that needs a listing lists the bucket again."""
        self._listing.forget()

    def is_finished(self, run: SweepRun) -> bool:
        """Return whether the bucket has the record of a run."""
        return self._listing.tag(_name(run, "tar")) is not None

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
        if state_of(folder, run.experiment) is not FolderState.DONE:
            raise self._damaged(name, "the run is not complete")

    def _damaged(self, name: str, why: str) -> OutputError:
        return OutputError(
            f"object {name} in {self._bucket} is not a complete record of its run: {why}; delete this object"
        )

    def _put(self, run: SweepRun) -> None:
        """Copy the record of a run from the folder to the bucket. If the bucket already has a record of the run, copy
        this record to the folder instead.
        """
        name = _name(run, "tar")
        with temporary_file() as file:
            write_archive(self.folder / run.path, file)
            file.seek(0)
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            if self._listing.tag(name) == f'"{digest}"':
                return
            file.seek(0)
            if self._bucket.put(name, file) is None:
                self.fetch(run)


def _name(run: SweepRun, kind: str) -> str:
    """Return the name of a run's object in the bucket. `kind` is `tar` or `claim`.

    The name contains a digest of the experiment, so that experiments with different settings have different names. The
    files of the user's own code are left out of this digest, because some machines lack some of these files.
    `state_of` compares the code.
    """
    experiment = run.experiment.model_copy(update={"files": {}})
    return f"{run.path.as_posix()}/{experiment.digest[:12]}.{kind}"
