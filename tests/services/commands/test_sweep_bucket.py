"""A sweep in a bucket, at a server of buckets: claims, records, what is refused, and processes that share the runs."""

import io
import socket
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.cluster.release import Release
from emulator.commands.main import execute
from emulator.sweep_jobs import sweep_job
from emulator.sweep_jobs.api import JobState
from emulator.sweep_jobs.finished import BucketRuns
from emulator.sweep_jobs.objects import JobRequest
from emulator.sweep_jobs.storage import BucketStorage
from emulator.sweeps import bucket as bucket_module
from emulator.sweeps import s3
from emulator.sweeps.bucket import SharedBucket
from emulator.sweeps.claims import Failure
from emulator.sweeps.file import Sweep, SweepRun, sweep_of
from emulator.sweeps.s3 import Bucket
from emulator.sweeps.sweep_folder import FolderState, state_of
from emulator.sweeps.sweep_progress import SweepDisplay
from fedstrata.errors import AddressError, OutputError
from tests.support.buckets import check_credentials, served_bucket, settings_of
from tests.support.ports import kept_address
from tests.support.programs import Program, until_begun
from tests.support.sweep_tables import without_bytes
from tests.support.tiny_sweeps import BASE, write_run

FAILED = Failure(reason="no quorum", seconds=2.5)


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with served_bucket() as address:
        yield address


@pytest.fixture
def to(store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix for this test alone."""
    for name, value in settings_of(store).items():
        monkeypatch.setenv(name, value)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(bucket_module, "LOOK_S", 0.0)
    return f"s3://lab/{request.node.name[:60].strip('[]')}"


def sweep(**keys: Any) -> Sweep:
    return sweep_of({"base": {**BASE, **keys}, "seeds": [3, 4]}, name="tiny", where="tiny", beside=Path())


RUN, OTHER = sweep().runs


def machine(to: str, tmp_path: Path, name: str) -> SharedBucket:
    return SharedBucket(Bucket(to), tmp_path / name)


def finish(there: SharedBucket, run: SweepRun, mean: float = 0.86) -> None:
    """Write to a machine's folder the files that a run leaves there."""
    folder = write_run(there.folder, run, accuracy={"mean": mean})
    (folder / "models").mkdir()
    (folder / "models" / "lps-0.safetensors").write_bytes(bytes(3_000_000))
    (folder / "report.html").write_text("<p>of this machine")


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- claims -------------------------------------------------------------------------------------------------


def test_a_run_is_one_machines_at_a_time(to: str, tmp_path: Path) -> None:
    one, other = machine(to, tmp_path, "one"), machine(to, tmp_path, "other")
    first = one.claim(RUN)
    assert first is not None
    assert other.claim(RUN) is None
    assert one.claim(RUN) is None
    second = other.claim(OTHER)
    assert second is not None
    first.release()
    again = other.claim(RUN)
    assert again is not None
    again.release()
    second.release()


def test_a_lease_that_its_owner_renews_stays_and_a_dead_owners_is_taken_over(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease of three seconds."""
    monkeypatch.setattr(bucket_module, "LEASE_S", 3.0)
    other = machine(to, tmp_path, "other")
    dead = machine(to, tmp_path, "dead").claim(OTHER)  # it will not renew in time
    assert dead is not None
    monkeypatch.setattr(bucket_module, "RENEW_S", 0.2)
    alive = machine(to, tmp_path, "alive").claim(RUN)
    assert alive is not None
    taken, deadline = None, time.monotonic() + 30
    while taken is None and time.monotonic() < deadline:
        assert other.claim(RUN) is None
        taken = other.claim(OTHER)
        time.sleep(0.1)  # between two looks
    assert taken is not None
    assert other.claim(RUN) is None
    dead.release()  # it wakes up again, and changes nothing
    assert machine(to, tmp_path, "third").claim(OTHER) is None
    taken.release()
    alive.release()


def test_of_machines_that_claim_at_the_same_moment_one_gets_the_run(to: str, tmp_path: Path) -> None:
    machines = [machine(to, tmp_path, str(number)) for number in range(6)]
    start, claims = threading.Barrier(6), []

    def claim(each: SharedBucket) -> None:
        start.wait()
        claims.append(each.claim(RUN))

    threads = [threading.Thread(target=claim, args=(each,)) for each in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (got,) = [found for found in claims if found is not None]
    assert len(claims) == 6
    got.release()


def test_failures_reach_the_other_machines(to: str, tmp_path: Path) -> None:
    one, other = machine(to, tmp_path, "one"), machine(to, tmp_path, "other")
    for _ in range(2):
        claim = one.claim(RUN)
        assert claim is not None
        claim.note(FAILED)
        claim.release()
    assert list(other.failures(RUN)) == [FAILED, FAILED]
    assert list(other.failures(OTHER)) == []


def test_conditions_hold_whatever_the_environment_says(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    claim = machine(to, tmp_path, "one").claim(RUN)
    assert claim is not None
    assert machine(to, tmp_path, "other").claim(RUN) is None
    claim.release()


# --- records ------------------------------------------------------------------------------------------------


def test_a_finished_run_is_not_done_again_and_its_record_arrives_whole(to: str, tmp_path: Path) -> None:
    one, other = machine(to, tmp_path, "one"), machine(to, tmp_path, "other")
    claim = one.claim(RUN)
    assert claim is not None
    finish(one, RUN)
    assert not other.is_finished(RUN)
    claim.finish()
    claim.release()
    found = other.claim(RUN)
    assert found is not None
    found.release()
    assert state_of(other.folder / RUN.path, RUN.experiment) is FolderState.DONE
    arrived, left = files_of(other.folder / RUN.path), files_of(one.folder / RUN.path)
    assert left.keys() - arrived.keys() == {"report.html"}
    assert arrived == {name: left[name] for name in arrived}


def test_of_two_machines_that_finish_a_run_both_have_the_first_record(to: str, tmp_path: Path) -> None:
    one, other = machine(to, tmp_path, "one"), machine(to, tmp_path, "other")
    slow = one.claim(RUN)
    assert slow is not None
    finish(one, RUN, mean=0.5)
    finish(other, RUN, mean=0.6)
    with other.joined(sweep()):  # a record that is complete before the sweep begins goes to the bucket
        pass
    slow.finish()
    slow.release()
    assert (one.folder / RUN.path / "summary.json").read_bytes() == (
        other.folder / RUN.path / "summary.json"
    ).read_bytes()
    assert '"mean": 0.6' in (one.folder / RUN.path / "summary.json").read_text()


def test_a_run_with_other_settings_is_another_run(to: str, tmp_path: Path) -> None:
    one, other = machine(to, tmp_path, "one"), machine(to, tmp_path, "other")
    finish(one, RUN)
    with one.joined(sweep()):
        pass
    changed = sweep(training={"local_epochs": 2}).runs[0]
    assert changed.path == RUN.path
    assert (other.is_finished(RUN), other.is_finished(changed)) == (True, False)


@pytest.mark.parametrize("name", ["../evil.json", "notes.txt", ""])
def test_an_object_that_is_no_record_of_the_run_is_refused(name: str, to: str, tmp_path: Path) -> None:
    archive = io.BytesIO()
    if name:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
    Bucket(to).put(f"{RUN.path}/{RUN.experiment.digest[:12]}.tar", archive.getvalue() or b"evil")
    there = machine(to, tmp_path, "there")
    with pytest.raises(OutputError, match=r"seed-3/[0-9a-f]{12}\.tar in s3.* is not a complete record of its run"):
        there.claim(RUN)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".seed-3.claim"]


# --- what is refused ----------------------------------------------------------------------------------------


def refusal(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and the line of a sweep that does not begin."""
    path, out = tmp_path / "tiny.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump({"base": BASE, "seeds": [3]}))
    code = execute(["sweep", str(path), "--out", str(out), *words])
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert not out.exists()
    return code, said


@pytest.mark.parametrize("address", ["s3://lab", "s3:/lab/tiny", "lab/tiny", "s3://lab/", "s3:///tiny"])
def test_an_address_without_bucket_or_prefix(
    address: str, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = refusal(["--to", address], tmp_path, capsys)
    assert code == 2
    assert (
        f"--to '{address}' is not the address of a bucket; give a bucket and a prefix, such as s3://lab/five-seeds"
        in said
    )


def test_a_bucket_that_is_not_there(to: str, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = refusal(["--to", "s3://nowhere/tiny"], tmp_path, capsys)
    assert code == 2
    assert f"s3://nowhere/tiny at {store}: there is no bucket nowhere; make it, or give another with --to" in said


def test_wrong_credentials(to: str, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_credentials(store)
    try:
        code, said = refusal(["--to", to], tmp_path, capsys)
    finally:
        check_credentials(store, after="inf")
    assert code == 2
    assert f"{to} at {store} refuses these credentials: InvalidAccessKeyId, " in said
    assert "AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION and the bucket's policy" in said


def test_no_credentials(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with kept_address() as nobody:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{nobody}")
        code, said = refusal(["--to", to], tmp_path, capsys)
    assert code == 2
    assert f"no credentials for {to} at http" in said
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in said


@pytest.mark.parametrize("what", ["AWS_ENDPOINT_URL_S3", "http_proxy"])
def test_a_store_or_a_proxy_that_does_not_answer(
    what: str, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept_address() as nobody:
        monkeypatch.setenv(what, f"http://{nobody}")
        code, said = refusal(["--to", to], tmp_path, capsys)
    assert code == 6
    assert "does not answer: " in said
    assert "check AWS_ENDPOINT_URL_S3, AWS_CA_BUNDLE and HTTPS_PROXY" in said


def test_a_store_that_accepts_a_connection_and_is_silent(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "ANSWER_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{silent.getsockname()[1]}")
        code, said = refusal(["--to", to], tmp_path, capsys)
    assert code == 6
    assert "does not answer: " in said


@pytest.mark.parametrize("server", ["", "s3.example.org", "http://127.0.0.1:99999"])
def test_a_server_that_is_no_address(
    server: str, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server)
    code, said = refusal(["--to", to], tmp_path, capsys)
    assert code == 2
    assert f"AWS_ENDPOINT_URL_S3 '{server}' is not an address; give one such as https://s3.example.org" in said


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"])
def test_a_variable_with_the_end_of_a_line(
    name: str, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file makes it that an editor wrote. Secrets are not shown."""
    monkeypatch.setenv(name, "tests\n")
    code, said = refusal(["--to", to], tmp_path, capsys)
    assert (code, said) == (
        2,
        f"error: {name} is empty, or has a space or line break in it; correct it, or unset it\n",
    )


def test_certificates_that_are_not_there(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere/ca.pem")
    code, said = refusal(["--to", to], tmp_path, capsys)
    assert code == 2
    assert "No such file or directory: '/nowhere/ca.pem'; check the address, " in said


class OldStore(BaseHTTPRequestHandler):
    """A store whose writes have no conditions."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def old_store(to: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OldStore)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("old_store")
def test_a_store_without_conditions_for_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = refusal(["--to", "s3://lab/tiny"], tmp_path, capsys)
    assert code == 2
    assert "ignores the conditions If-None-Match and If-Match of writes; use a newer store, or leave --to out" in said


def test_a_bucket_that_falls_silent_is_asked_again_and_not_for_ever(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(Bucket):
        is_silent = False

        def objects(self) -> dict[str, str]:
            if self.is_silent:
                raise AddressError("silent")
            return super().objects()

    bucket = Silent(to)
    there = SharedBucket(bucket, tmp_path)
    assert not there.is_finished(RUN)
    bucket.is_silent = True
    assert there.claim(RUN) is None
    monkeypatch.setattr(bucket_module, "AWAY_S", 0.0)
    with pytest.raises(AddressError, match="silent"):
        there.claim(RUN)


# --- pods ---------------------------------------------------------------------------------------------------


class Job:
    """A Kubernetes whose Job is at work once, and then has failed."""

    def __init__(self, _where: object) -> None:
        self.states = [JobState(uid="1", pods=1, failed={}), JobState(uid="1", ended="Failed", failed={})]

    def is_shared(self, claim: str) -> bool:
        raise AssertionError(claim)

    def ensure(self, *_: object) -> None:
        """Make nothing."""

    def look(self, _name: str) -> JobState:
        return self.states.pop(0)


def test_the_command_gets_records_and_failures_of_pods_from_the_bucket(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, here = machine(to, tmp_path, "pod"), machine(to, tmp_path, "here")
    for run in (RUN, OTHER):
        claim = pod.claim(run)
        assert claim is not None
        if run is RUN:
            finish(pod, run)
            claim.finish()
        else:
            claim.note(FAILED)
        claim.release()
    monkeypatch.setattr(sweep_job, "SweepApi", Job)
    monkeypatch.setattr(sweep_job, "pass_time", lambda _: None)
    request = sweep_job.ClusterSweepRequest(
        sweep=sweep(), store=here, runs=lambda *_: BucketRuns(here),
        job=JobRequest(storage=BucketStorage(to, "lab")), where=Release(name="tiny", namespace="lab"),
    )  # fmt: skip
    outcome = sweep_job.sweep_on_kubernetes(request, SweepDisplay(), lambda _: None)
    assert "1 of 2 runs failed, first base, seed 4: no quorum" in str(outcome.failure)
    assert "base,mean_accuracy,1,0.86" in (here.folder / "table.csv").read_text()
    assert (here.folder / RUN.path / "report.html").stat().st_size > 10_000


# --- processes ----------------------------------------------------------------------------------------------


@pytest.mark.runs
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
def test_processes_share_a_bucket_and_one_of_them_does_the_run_of_a_killed_one(to: str, tmp_path: Path) -> None:
    """Two runs and three processes. One is killed in its first run; its lease ends after twelve seconds."""
    cells = {
        "one_shot": {"training.global_rounds": 2, "method.clusters": 1},
        "random": {"training.global_rounds": 2, "method": {"name": "random", "clusters": 1}},
    }
    file = tmp_path / "shared.yaml"
    file.write_text(yaml.safe_dump({"base": "digits", "seeds": [3], "cells": cells, "baseline": "random"}))
    assert execute(["sweep", str(file), "--out", str(tmp_path / "alone"), "--quiet"]) == 0

    def started(name: str) -> Program:
        words = ("sweep", str(file), "--out", str(tmp_path / name), "--to", to, "--jobs", "1", "--json")
        return Program("tests.support.short_lease", *words, log=tmp_path / f"{name}.log")

    with started("first") as first:
        until_begun(tmp_path / "first")
        first.process.kill()
        first.end()
    names = ("second", "third")
    with started("second") as second, started("third") as third:
        told = [list(program.lines()) for program in (second, third)]
        assert [program.end() for program in (second, third)] == [0, 0]
    assert [lines[-1]["completed"] for lines in told] == [2, 2]
    assert sum(lines[-1]["done_now"] for lines in told) == 2  # none was done twice
    assert not list((tmp_path / "first").glob("runs/*/*/summary.json"))
    tables = [(tmp_path / name / "table.csv").read_bytes() for name in names]
    assert tables[0] == tables[1]
    pages = [(tmp_path / name / "runs" / "random" / "seed-3" / "report.html").stat().st_size for name in names]
    assert min(pages) > 10_000
    (found, of_found), (expected, of_expected) = (
        without_bytes((tmp_path / name / "table.csv").read_text()) for name in ("second", "alone")
    )
    assert found == expected
    assert of_found == pytest.approx(of_expected, rel=1e-3)
