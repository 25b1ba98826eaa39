"""A sweep on Kubernetes without Kubernetes: what is refused, how records arrive, and how a Job is followed."""

import io
import math
import re
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.cluster.release import Release
from emulator.commands.main import execute
from emulator.sweep_jobs import sweep_job
from emulator.sweep_jobs.api import JobState
from emulator.sweep_jobs.finished import ClaimRuns
from emulator.sweep_jobs.objects import JobRequest, SweepObjects
from emulator.sweep_jobs.reader import make_server
from emulator.sweep_jobs.records import BegunRuns, fetch_record
from emulator.sweep_jobs.refusals import check
from emulator.sweep_jobs.storage import ClaimStorage
from emulator.sweeps.claims import Failure
from emulator.sweeps.file import Sweep, sweep_of
from emulator.sweeps.store import SharedFolder
from emulator.sweeps.sweep_progress import SweepDisplay
from fedstrata.errors import AccountError, AddressError, ExperimentError, PayloadError, RunStoppedError
from tests.support.tiny_sweeps import BASE, claim_of, write_run

RUN = Path("runs/base/seed-3")
SHARED = ClaimStorage("shared")


def sweep(seeds: Sequence[int] = (3, 4), **keys: Any) -> Sweep:
    document = {"base": {**BASE, **keys}, "seeds": list(seeds)}
    return sweep_of(document, name="tiny", where="tiny.yaml", beside=Path())


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"data": {"name": "digits", "folder": "mine"}}, "base, seed 3: pods cannot read data.folder mine"),
        ({"data": {"name": "folder", "input_shape": [2], "num_classes": 2},
          "partition": {"kind": "local", "names": ["a"]}},
         "base, seed 3: partition.kind local is for boards"),
        ({"links": {"traces": {"bus": {"file": "bus.log", "format": "mahimahi", "after": "hold"}},
                    "device-lps": {"down_trace": "bus"}},
          "clock": "virtual"},
         "pods cannot read files of this machine"),
    ],
)  # fmt: skip
def test_what_a_pod_has_not_is_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "bus.log").write_text("1\n2\n")
    document = {"base": {**BASE, **keys}, "seeds": [3]}
    loaded = sweep_of(document, name="tiny", where=str(tmp_path / "tiny.yaml"), beside=tmp_path)
    with pytest.raises(ExperimentError, match=message):
        check(loaded, {"tiny.yaml": loaded.text}, JobRequest(storage=SHARED))


def test_a_file_is_refused_wherever_it_is_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "bus.log").write_text("1\n2\n")
    trace = {"file": str(tmp_path / "bus.log"), "format": "mahimahi", "after": "hold"}
    links = {"clock": "virtual", "links": {"traces": {"bus": trace}, "device-lps": {"down_trace": "bus"}}}
    with pytest.raises(ExperimentError, match=r"base\.links\.traces\.bus\.file is /.*bus\.log; write the samples"):
        check(sweep(**links), {}, JobRequest(storage=SHARED))
    axis = replace(sweep(), text="vary: {model.weights: [net.bin]}")
    with pytest.raises(ExperimentError, match=r"vary\.model\.weights\.0 is net\.bin; .* leave out model\.weights"):
        check(axis, {}, JobRequest(storage=SHARED))


def test_own_code_goes_along_or_is_in_an_image_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "minelike.py").write_text("from fedstrata.methods.fed_avg import FedAvg as Mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = sweep(method={"name": "minelike:Mine"})
    files = {"tiny.yaml": loaded.text}
    with pytest.raises(ExperimentError, match="do not have the module of minelike:Mine; send its file with --code"):
        check(loaded, files, JobRequest(storage=SHARED))
    check(loaded, {**files, "minelike.py": ""}, JobRequest(storage=SHARED))
    check(loaded, files, JobRequest(storage=SHARED, image="mine:1"))


def test_a_run_that_is_too_large_for_a_pod_is_told_what_it_needs() -> None:
    loaded = sweep(seeds=[3], partition={"kind": "iid", "devices": 50, "examples_per_device": 20})
    check(loaded, {}, JobRequest(storage=SHARED))
    with pytest.raises(ExperimentError, match=r"50 devices with their servers need 1,\d{3} MiB, but a pod has 512"):
        check(loaded, {}, JobRequest(storage=SHARED, memory_mib=512))


def test_files_larger_than_a_config_map_are_refused() -> None:
    with pytest.raises(ExperimentError, match="have 1,000,001 bytes, but a ConfigMap holds 1,000,000"):
        check(sweep(), {"tiny.yaml": "x" * 1_000_001}, JobRequest(storage=SHARED))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "kubernetes"], "--on kubernetes needs a volume claim that all pods mount, or a bucket"),
        (["--on", "kubernetes", "--claim", "shared", "--to", "s3://lab/tiny"], "give either --claim"),
        (["--on", "kubernetes", "--claim", "shared", "--secret", "lab"], "--secret is only for a bucket; add --to"),
        (["--to", "s3://lab/tiny", "--secret", "lab"], "--secret: only for pods; add --on kubernetes"),
        (["--claim", "shared"], "--claim: only for pods; add --on kubernetes"),
        (["--queue", "lab", "--retries", "2"], "--queue, --retries: only for pods; add --on kubernetes"),
        (["--on", "kubernetes", "--claim", "shared", "--jobs", "2"], "--jobs is only for runs on this machine"),
        (["--on", "kubernetes", "--claim", "shared", "--memory", "much"], "--memory 'much'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({"base": BASE, "seeds": [3]}))
    assert execute(["sweep", str(path), "--out", str(tmp_path / "out"), *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


# --- records ------------------------------------------------------------------------------------------------


def finish(out: Path, loaded: Sweep, index: int, mean: float = 0.86) -> None:
    """What a pod leaves of a run."""
    run = loaded.runs[index]
    with claim_of(out / run.path):
        folder = write_run(out, run, accuracy={"mean": mean})
        (folder / "report.html").write_text("<p>of pods")
        (folder / "models").mkdir()
        (folder / "models" / "lps-0.safetensors").write_bytes(bytes(3_000_000))
        (folder / "state").mkdir()


@contextmanager
def served(server: ThreadingHTTPServer) -> Iterator[str]:
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_record_arrives_whole_without_report_and_state(tmp_path: Path) -> None:
    out, here = tmp_path / "out", tmp_path / "here"
    finish(out, sweep(), 0)
    with served(make_server(out, 0)) as address:
        begun = BegunRuns.at(address)
        assert [begun.is_completed(run.path) for run in sweep().runs] == [True, False]
        fetch_record(address, RUN, here)
        with pytest.raises(AddressError, match="404"):
            fetch_record(address, Path("runs/base/seed-4"), here)
        with pytest.raises(AddressError, match="404"):
            fetch_record(address, Path("../out"), here)
    names = {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()}
    assert names == {"experiment.yaml", "summary.json", "rounds.csv", "relevance.csv", "models/lps-0.safetensors"}
    for name in names:
        assert (here / name).read_bytes() == (out / RUN / name).read_bytes()


def test_records_do_not_come_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(tmp_path / "out", sweep(), 0)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # where nothing listens
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with served(make_server(tmp_path / "out", 0)) as address:
        assert BegunRuns.at(address).is_completed(RUN)


def test_failures_arrive_with_their_reason(tmp_path: Path) -> None:
    with claim_of(tmp_path / RUN) as claim:
        claim.note(Failure(reason="no quorum", seconds=2.5))
    with served(make_server(tmp_path, 0)) as address:
        assert BegunRuns.at(address).failure(RUN) == Failure(reason="no quorum", seconds=2.5)
        assert BegunRuns.at(address).failure(Path("runs/base/seed-4")) is None


@pytest.mark.parametrize(
    "failures",
    [None, [], ["no quorum"], *([{"reason": "no quorum", "seconds": seconds}] for seconds in (10**400, math.nan, -1))],
)
def test_failures_of_another_form_are_none(failures: Any) -> None:
    assert BegunRuns({str(RUN): {"is_completed": False, "failures": failures}}).failure(RUN) is None


@pytest.mark.parametrize("name", ["../evil.json", "report.html", "/etc/passwd"])
def test_a_reader_that_sends_other_files_is_not_believed(name: str, tmp_path: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 4
        tar.addfile(member, io.BytesIO(b"evil"))

    class Lying(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(archive.getvalue())

        def log_message(self, *_: Any) -> None:
            pass

    here = tmp_path / "a" / "here"
    with served(ThreadingHTTPServer(("127.0.0.1", 0), Lying)) as address:
        with pytest.raises(PayloadError, match="is not a file of a run record"):
            fetch_record(address, RUN, here)
        with pytest.raises(PayloadError, match="does not send a list of runs"):
            BegunRuns.at(address)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# --- following ----------------------------------------------------------------------------------------------


class Pods:
    """A Kubernetes whose Job has the states of a script, and the pods' folder behind its reader."""

    def __init__(self, folder: Path, script: Sequence[JobState | BaseException]) -> None:
        self.folder, self.script, self.calls = folder, list(script), list[str]()

    def __call__(self, _where: object) -> "Pods":
        return self

    def is_shared(self, _claim: str) -> bool:
        return True

    def ensure(self, objects: SweepObjects, _tell: object) -> None:
        self.calls.append(f"ensure {objects.job_name}")

    def look(self, _name: str) -> JobState:
        step = self.script.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    def has_reader(self, *_: object) -> bool:
        return True

    @contextmanager
    def reader_address(self, _objects: object) -> Iterator[str]:
        with served(make_server(self.folder, 0)) as address:
            yield address

    def delete_reader(self, _objects: object) -> None:
        self.calls.append("delete reader")

    def delete_job(self, name: str) -> None:
        self.calls.append(f"delete {name}")


def state(**keys: Any) -> JobState:
    return JobState(uid="1234", failed=keys.pop("failed", {}), **keys)


class Follower:
    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pods_folder, self.out, self._patch = tmp_path / "claim", tmp_path / "out", monkeypatch
        self.told: list[str] = []
        monkeypatch.setattr(sweep_job, "pass_time", lambda _: None)

    def follow(self, *script: JobState | BaseException) -> tuple[Pods, Any]:
        pods = Pods(self.pods_folder, script)
        self._patch.setattr(sweep_job, "SweepApi", pods)
        request = sweep_job.ClusterSweepRequest(
            sweep=sweep(), store=SharedFolder(self.out), runs=partial(ClaimRuns, folder=self.out),
            job=JobRequest(storage=SHARED), where=Release(name="tiny", namespace="lab"),
        )  # fmt: skip
        self.pods = pods
        return pods, sweep_job.sweep_on_kubernetes(request, SweepDisplay(), self.told.append)


@pytest.fixture
def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follower:
    return Follower(tmp_path, monkeypatch)


def test_an_interrupted_command_fetches_the_rest_when_it_is_called_again(follower: Follower) -> None:
    finish(follower.pods_folder, sweep(), 0, 0.5)
    with pytest.raises(KeyboardInterrupt):
        follower.follow(state(pods=2), KeyboardInterrupt())
    assert follower.pods.calls == ["ensure tiny-sweep", "delete reader"]
    assert "job tiny-sweep keeps running; the same command follows it again" in follower.told[-1]
    first = (follower.out / RUN / "summary.json").stat().st_mtime_ns

    finish(follower.pods_folder, sweep(), 1, 0.7)
    _, outcome = follower.follow(state(ended="Complete"))
    assert outcome.failure is None
    assert (follower.out / RUN / "summary.json").stat().st_mtime_ns == first
    assert "base,mean_accuracy,2,0.6" in (follower.out / "table.csv").read_text()
    assert (follower.out / RUN / "report.html").stat().st_size > 10_000  # made here


@pytest.mark.parametrize(
    ("name", "said"), [("waits.csv", r"waits\.csv has no column"), ("No.json", "is not a file of")]
)
def test_a_record_with_a_damaged_file_is_one_failed_run(follower: Follower, name: str, said: str) -> None:
    for index in (0, 1):
        finish(follower.pods_folder, sweep(), index)
    (follower.pods_folder / RUN / name).write_text("damaged", encoding="utf-8")
    _, outcome = follower.follow(state(ended="Complete"))
    assert re.search(rf"1 of 2 runs failed, first base, seed 3: .*{said}", str(outcome.failure))
    assert (follower.out / sweep().runs[1].path / "report.html").exists()


def test_a_kubernetes_that_does_not_answer_for_a_while_is_asked_again(follower: Follower) -> None:
    for index in (0, 1):
        finish(follower.pods_folder, sweep(), index)
    away = AddressError("Kubernetes does not answer")
    _, outcome = follower.follow(state(pods=1), away, away, state(ended="Complete"))
    assert outcome.failure is None
    assert follower.told == ["Kubernetes does not answer; trying again"]


def test_a_job_without_hope_is_deleted_and_its_reason_told(follower: Follower) -> None:
    with pytest.raises(RunStoppedError, match="no pod of job tiny-sweep can run, so it was deleted: ErrImagePull"):
        follower.follow(state(hopeless="ErrImagePull"))
    assert follower.pods.calls == ["ensure tiny-sweep", "delete tiny-sweep", "delete reader"]


def test_an_account_that_may_not_forward_ports_is_told_at_once(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AccountError("this account may not forward ports")

    monkeypatch.setattr(Pods, "reader_address", refuse)
    with pytest.raises(AccountError, match="may not forward ports"):
        follower.follow(state(pods=1))


def test_records_that_do_not_come_after_the_end_of_the_job_are_not_waited_for_for_ever(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pods, "has_reader", lambda *_: False)
    monkeypatch.setattr(sweep_job, "RECORDS_S", 0.0)
    with pytest.raises(AddressError, match="job tiny-sweep ended, but no records came in"):
        follower.follow(*[state(ended="Complete")] * 3)


def test_a_failed_run_is_told_at_the_end_of_the_job(follower: Follower) -> None:
    finish(follower.pods_folder, sweep(), 0)
    with claim_of(follower.pods_folder / sweep().runs[1].path) as claim:
        claim.note(Failure(reason="no quorum", seconds=2.5))
    _, outcome = follower.follow(state(pods=1), state(ended="Failed", reason="BackoffLimitExceeded"))
    assert "1 of 2 runs failed, first base, seed 4: no quorum" in str(outcome.failure)


def test_a_job_that_failed_before_its_runs_ended_says_the_last_words_of_a_pod(follower: Follower) -> None:
    failed = {"tiny-sweep-x": "pod tiny-sweep-x used more memory than its limit; raise --memory"}
    with pytest.raises(RunStoppedError, match="2 runs missing: BackoffLimitExceeded; pod tiny-sweep-x used more"):
        follower.follow(state(ended="Failed", reason="BackoffLimitExceeded", failed=failed))


def test_a_complete_job_with_missing_runs_is_deleted_so_that_the_next_call_does_them(follower: Follower) -> None:
    with pytest.raises(RunStoppedError, match="2 runs missing: Complete"):
        follower.follow(state(ended="Complete"))
    assert follower.pods.calls[-1] == "delete tiny-sweep"
