"""A sweep's place in a bucket whose store is away for a while, loses answers, or has damaged objects."""

import hashlib
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import pytest

from emulator.cluster.release import Release
from emulator.sweep_jobs import sweep_job
from emulator.sweep_jobs.api import JobState
from emulator.sweep_jobs.finished import BucketRuns
from emulator.sweep_jobs.objects import JobRequest
from emulator.sweep_jobs.storage import BucketStorage
from emulator.sweeps import bucket as bucket_module
from emulator.sweeps import s3
from emulator.sweeps import sweep as sweep_module
from emulator.sweeps.bucket import SharedBucket
from emulator.sweeps.claims import Failure
from emulator.sweeps.file import SweepRun, sweep_of
from emulator.sweeps.store import RunClaim, SharedFolder
from emulator.sweeps.sweep import SweepRequest
from emulator.sweeps.sweep_progress import SweepDisplay
from fedstrata.errors import AddressError, ExperimentError, MissingPackageError, OutputError, RunStoppedError
from tests.support.tiny_sweeps import BASE, write_run

SWEEP = sweep_of({"base": BASE, "seeds": [3, 4]}, name="tiny", where="tiny", beside=Path())
RUN, OTHER = SWEEP.runs
CLAIM, RECORD = (f"{RUN.path}/{RUN.experiment.digest[:12]}.{kind}" for kind in ("claim", "tar"))
FAILED = Failure(reason="no quorum", seconds=2.5)
AWAY = AddressError("away")


def tag_of(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


class Memory:
    """A store with conditional writes. Before a write it does what `faults` say, one per write."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.faults: list[Callable[[], None]] = []
        self.is_away = self.loses_answers = False
        self.writes = threading.Semaphore(0)

    def check(self) -> None:
        """Be good enough."""

    def objects(self) -> dict[str, str]:
        self._answer()
        return {name: tag_of(content) for name, content in self.contents.items()}

    def content(self, name: str) -> tuple[bytes, str]:
        self._answer()
        if name not in self.contents:
            raise AddressError("NoSuchKey")
        return self.contents[name], tag_of(self.contents[name])

    @contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        yield io.BytesIO(self.content(name)[0])

    def put(self, name: str, content: bytes | IO[bytes], *, over: str | None = None) -> str | None:
        self._answer()
        if self.faults:
            self.faults.pop(0)()
        content = content if isinstance(content, bytes) else content.read()
        there = self.contents.get(name)
        if over != (None if there is None else tag_of(there)):
            return None
        self.contents[name] = content
        if self.loses_answers:
            self.loses_answers = False
            raise AWAY
        self.writes.release()
        return tag_of(content)

    def _answer(self) -> None:
        if self.is_away:
            raise AWAY


@pytest.fixture
def store() -> Memory:
    return Memory()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "LOOK_S", 0.0)
    monkeypatch.setattr(bucket_module, "AGAIN_S", 0.01)
    monkeypatch.setattr(sweep_module, "LOOK_S", 0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of the module's clock."""
    now = [1000.0]
    monkeypatch.setattr(bucket_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def machine(store: Memory, folder: Path) -> SharedBucket:
    return SharedBucket(cast("s3.Bucket", store), folder)


def claimed(there: SharedBucket) -> RunClaim:
    claim = there.claim(RUN)
    assert claim is not None
    return claim


def finish(folder: Path, run: SweepRun = RUN) -> None:
    write_run(folder, run)


def refuse() -> None:
    raise AWAY


# --- a store that is away -----------------------------------------------------------------------------------


def test_silence_is_counted_from_the_first_failure(store: Memory, tmp_path: Path, clock: list[float]) -> None:
    there = machine(store, tmp_path)
    assert not there.is_finished(RUN)
    clock[0] += 1200  # in a long run, without a look
    store.is_away = True
    assert there.claim(RUN) is None
    clock[0] += bucket_module.AWAY_S - 1
    assert there.claim(RUN) is None
    clock[0] += 2
    with pytest.raises(AddressError):
        there.claim(RUN)


def test_a_store_that_only_refuses_writes_is_silent_too(store: Memory, tmp_path: Path, clock: list[float]) -> None:
    """As a full store does."""
    there = machine(store, tmp_path)
    store.faults = [refuse, refuse]
    assert there.claim(RUN) is None
    clock[0] += bucket_module.AWAY_S + 1
    with pytest.raises(AddressError):
        there.claim(RUN)


def test_a_claim_ages_only_while_it_is_seen(store: Memory, tmp_path: Path, clock: list[float]) -> None:
    """The store is away for two minutes, for the owner of a claim, too."""
    owner, other = machine(store, tmp_path / "owner"), machine(store, tmp_path / "other")
    claim = claimed(owner)
    assert other.claim(RUN) is None
    clock[0] += 120
    assert other.claim(RUN) is None
    for _ in range(4):
        clock[0] += 15
        assert other.claim(RUN) is None
    clock[0] += 1
    claimed(other).release()
    claim.release()


def test_a_finished_run_waits_for_a_store_that_is_away(store: Memory, tmp_path: Path) -> None:
    there = machine(store, tmp_path)
    claim = claimed(there)
    finish(tmp_path)
    store.faults = [refuse, refuse]
    claim.finish()
    assert RECORD in store.contents
    claim.release()


def test_an_upload_that_was_refused_for_an_object_that_is_not_there_is_repeated(store: Memory, tmp_path: Path) -> None:
    """As a conflict of two writers makes it, if the other one's write fails."""
    there = machine(store, tmp_path)
    claim = claimed(there)
    finish(tmp_path)
    store.faults = [lambda: store.contents.update({RECORD: b"half"})]
    get = store.content

    def gone(name: str) -> tuple[bytes, str]:
        store.contents.pop(RECORD, None)
        return get(name)

    store.content = gone  # type: ignore[method-assign]
    claim.finish()
    assert len(store.contents[RECORD]) > 100
    claim.release()


def test_a_run_waits_again_if_its_failures_cannot_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([(), (), AWAY])  # two before the sweep begins

    class Away(SharedFolder):
        def failures(self, run: SweepRun) -> Any:
            answer = next(answers, None)
            if isinstance(answer, AddressError):
                raise answer
            return super().failures(run)

    async def fail(*_: object) -> None:
        raise RunStoppedError("no quorum")

    monkeypatch.setattr(sweep_module, "on_this_machine", fail)
    outcome = sweep_module.sweep(SweepRequest(sweep=SWEEP, store=Away(tmp_path), jobs=1), SweepDisplay())
    assert sorted((run.seed, str(error)) for run, error in outcome.failures) == [(3, "no quorum"), (4, "no quorum")]


def test_the_last_look_at_a_jobs_runs_is_a_new_one(
    store: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "LOOK_S", 5.0)
    here, pod = machine(store, tmp_path / "here"), machine(store, tmp_path / "pod")
    runs = BucketRuns(here)
    with runs.look("1") as there:
        assert there is not None
        assert not there.is_finished(RUN)
    finish(pod.folder)
    with pod.joined(SWEEP):
        pass
    with runs.look("1") as there:
        assert there is not None
        assert there.is_finished(RUN)


# --- leases -------------------------------------------------------------------------------------------------


def test_a_renewal_whose_answer_was_lost_is_followed_by_others(
    store: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "RENEW_S", 0.01)
    claim = claimed(machine(store, tmp_path))
    store.loses_answers = True
    assert all(store.writes.acquire(timeout=5) for _ in range(5))
    claim.note(FAILED)
    assert [json.loads(store.contents[CLAIM])[key] for key in ("is_held", "failures")] == [False, [vars(FAILED)]]


def test_a_failed_renewal_is_repeated_soon(store: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "RENEW_S", 0.01)

    def fail() -> None:
        bucket_module.RENEW_S = 100.0
        raise AWAY

    claim, again = claimed(machine(store, tmp_path)), threading.Event()
    store.faults = [fail, again.set]
    assert again.wait(5)
    claim.release()


def test_a_failure_that_the_store_does_not_get_is_an_error(store: Memory, tmp_path: Path) -> None:
    claim = claimed(machine(store, tmp_path))
    store.contents[CLAIM] = b'{"is_held": true, "failures": [], "owner": "another"}'
    with pytest.raises(AddressError, match="another process has taken the run over"):
        claim.note(FAILED)
    assert b"another" in store.contents[CLAIM]
    claim.release()


@pytest.mark.parametrize("failure", [{"reason": "no quorum", "seconds": "long"}, {"reason": "no quorum"}, "no quorum"])
def test_a_failure_of_another_form_is_none(failure: Any, store: Memory, tmp_path: Path) -> None:
    store.contents[CLAIM] = json.dumps({"is_held": False, "failures": [failure], "owner": ""}).encode()
    assert list(machine(store, tmp_path).failures(RUN)) == []


# --- damage -------------------------------------------------------------------------------------------------


def test_a_damaged_record_is_the_failure_of_its_run_alone(
    store: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RunStoppedError("no quorum")

    monkeypatch.setattr(sweep_module, "on_this_machine", fail)
    store.contents[RECORD] = b"damaged"
    request = SweepRequest(sweep=SWEEP, store=machine(store, tmp_path), jobs=1)
    (first, damage), (second, other) = sweep_module.sweep(request, SweepDisplay()).failures
    assert (first, second) == (RUN, OTHER)
    assert "is not a complete record of its run" in str(damage)
    assert str(other) == "no quorum"


def test_a_damaged_record_of_a_pod_is_the_failure_of_its_run_alone(
    store: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, pod = machine(store, tmp_path / "here"), machine(store, tmp_path / "pod")
    finish(pod.folder, OTHER)
    with pod.joined(SWEEP):
        store.contents[RECORD] = b"damaged"
    ended = JobState(uid="1", ended="Failed", failed={})
    api = SimpleNamespace(is_shared=bool, ensure=lambda *_: None, look=lambda _: ended)
    monkeypatch.setattr(sweep_job, "SweepApi", lambda _: api)
    request = sweep_job.ClusterSweepRequest(
        sweep=SWEEP, store=here, runs=lambda *_: BucketRuns(here),
        job=JobRequest(storage=BucketStorage("s3://lab/tiny", "lab")), where=Release(name="tiny", namespace="lab"),
    )  # fmt: skip
    outcome = sweep_job.sweep_on_kubernetes(request, SweepDisplay(), lambda _: None)
    assert [run for run, _ in outcome.failures] == [RUN]
    assert "is not a complete record of its run" in str(outcome.failure)
    assert len(outcome.results.records) == 1


def test_a_folder_for_temporary_files_without_space_is_no_internal_fault(
    store: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> IO[bytes]:  # as a full /tmp
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(s3, "TemporaryFile", full)
    finish(tmp_path)
    with (
        pytest.raises(OutputError, match="temporary files: No space left on device; free space"),
        machine(store, tmp_path).joined(SWEEP),
    ):
        pass


# --- what obstore says --------------------------------------------------------------------------------------


class PanicException(BaseException):
    """A fault of obstore."""


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (PanicException("request valid"), ExperimentError, "obstore fails: request valid; check the variables"),
        (NotImplementedError("put_opts"), ExperimentError, "obstore fails: put_opts; check the variables"),
        ("<Code>ExpiredToken</Code><Message>Expired</Message>", ExperimentError, "refuses these credentials: Expired"),
        ("Received redirect without LOCATION, an incorrectly configured region", ExperimentError, "set AWS_REGION"),
        ("<Code>SlowDown</Code>", AddressError, "failed: SlowDown; the same command tries again"),
    ],
)
def test_what_a_store_says_becomes_a_message(
    error: BaseException | str, kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://s3.example.org")
    exceptions = pytest.importorskip("obstore.exceptions")

    def fail(*_: object) -> None:
        raise exceptions.GenericError(error) if isinstance(error, str) else error

    bucket = s3.Bucket("s3://lab/tiny")
    monkeypatch.setattr("obstore.list", fail)
    with pytest.raises(kind, match=said):
        bucket.objects()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "AWS_ENDPOINT_URL_S3",
            "https://s3.example.org\n",
            "AWS_ENDPOINT_URL_S3 'https://s3.example.org\\\\n' is not an address; give",
        ),
        (
            "AWS_ENDPOINT_URL_S3",
            " https://s3.example.org",
            "AWS_ENDPOINT_URL_S3 ' https://s3.example.org' is not an address; give",
        ),
        ("AWS_ENDPOINT", "nonsense", "AWS_ENDPOINT 'nonsense' is not an address; give one such as"),
        (
            "AWS_ENDPOINT_URL",
            "https://me:secret word@s3.example.org",
            "^AWS_ENDPOINT_URL has a user name in its address; give an address",
        ),
        ("AWS_TOKEN", "token\n", "AWS_TOKEN is empty, or has a space or line break in it"),
    ],
)
def test_a_variable_at_which_obstore_would_panic_is_named(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in s3.SERVER:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(ExperimentError, match=said) as raised:
        s3.Bucket("s3://lab/tiny")
    assert "secret" not in str(raised.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'fedstrata\[s3\]', or obstore by itself"):
        s3.Bucket("s3://lab/tiny")
