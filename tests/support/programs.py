"""Child processes of a test, `python -m gps`, `lps`, `device` or `emulator`, and what runs of them leave."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceStub

REPOSITORY = Path(__file__).parents[2]
MARK = "FEDSTRATA_TEST_MARK"
LINKS = ("device-gps", "device-lps", "lps-gps")
Counts = Counter[tuple[str, str, str, str]]  # bytes by link, direction, kind and end
# Runs a module as `python -m` does, in an environment where some packages cannot be imported.
WITHOUT = """
import runpy, sys
refused, module = sys.argv[1].split(","), sys.argv[2]
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"No module named {name!r}: refused by the test", name=name)
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[2:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


class Program:
    """One child process: where it listens, what it said, how it ended. A context manager that leaves none behind."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        log: Path,
        without: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        files: int | None = None,
    ) -> None:
        """`without` packages that cannot be imported there; with no more `files` open than so many."""
        start = ["-c", WITHOUT, ",".join(without), module] if without else ["-m", module]
        limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, files))
        self.log_path = log
        self.mark = uuid.uuid4().hex
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *start, *arguments],
                cwd=REPOSITORY,
                env={**os.environ, MARK: self.mark, "PYTHONWARNINGS": "default", **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                preexec_fn=limit if files else None,  # noqa: PLW1509  # it only makes a system call
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.end()

    def lines(self) -> Iterator[dict[str, Any]]:
        """The JSON lines that it prints, as they come, until it closes its output."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def addresses(self) -> dict[str, str]:
        """Where it listens, as soon as it says so."""
        said = next(self.lines(), None)
        assert said is not None, f"it did not come up: {self.log_path.read_text()}"
        assert said["event"] == "listening"
        return {name: address for name, address in said.items() if name != "event"}

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Wait for it to end by itself; its exit code."""
        self.process.communicate(timeout=60)
        return self.process.returncode

    def errors(self) -> list[str]:
        """Its lines on standard error that are no events."""
        return [line for line in self.log_path.read_text().splitlines() if line and not line.startswith("{")]


def run_to_the_end(file: Path, out: Path, *words: str, processes: int = 2) -> list[dict[str, Any]]:
    """The lines that a completed `fedstrata run` prints, by so many device processes."""
    log = out.with_suffix(".log")
    options = ("--out", str(out), "--device-processes", str(processes), *words, "--json")
    with Program("emulator", "run", str(file), *options, log=log) as program:
        lines = list(program.lines())
        assert program.end() == 0, log.read_text()
    return lines


def summary_with_restarts(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary in a run's lines, and in `restarts` the processes that were started again."""
    return dict(lines[-1]["summary"], restarts=[line["process"] for line in lines if line["event"] == "restart"])


def command_in(folder: Path, *words: str, timeout_s: float = 100) -> "subprocess.CompletedProcess[str]":
    """How a command of `fedstrata` ends in a folder whose modules can be imported."""
    return subprocess.run(
        [sys.executable, "-m", "emulator", *words], cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def start_heeding(number: signal.Signals, command: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
    """A process with pipes that heeds a signal, even if the tests ignore it: under nohup, or in a shell's background
    job.
    """
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=partial(signal.signal, number, signal.SIG_DFL), **options,  # noqa: PLW1509  # it takes no lock
    )  # fmt: skip


def of_mark(mark: str) -> list[str]:
    """The processes, as their command lines, that a program has started, however deep, itself included."""
    return [" ".join(command) for _, command in _of_mark(mark)]


def processes_of(mark: str, *words: str) -> list[int]:
    """The processes that a program has started with these words in their command lines, at least one."""
    found = [pid for pid, command in _of_mark(mark) if set(words) <= set(command)]
    assert found, f"no process with {words}"
    return found


def _of_mark(mark: str) -> Iterator[tuple[int, list[str]]]:
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name), (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue  # it has gone, or is not ours to look into


def events(log: Path) -> list[dict[str, Any]]:
    """The events in a program's log."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def http_get(address: str, path: str) -> tuple[int, str]:
    """Status and body of a page."""
    try:
        with urlopen(f"http://{address}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def total_bytes(counts: Counts, link: str, direction: str, end: str) -> int:
    """The bytes of a link in a direction that one end counted, of all kinds."""
    return sum(count for key, count in counts.items() if (key[0], key[1], key[3]) == (link, direction, end))


def scraped_bytes(address: str) -> dict[tuple[str, str, str, str], int]:
    """fedstrata_link_bytes_total of a process by link, direction, kind and end."""
    _, page = http_get(address, "/metrics")
    return {
        tuple(sample.labels[label] for label in ("link", "direction", "kind", "end")): int(sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "fedstrata_link_bytes_total"
    }


def wait_for_serving(address: str) -> None:
    """Wait until a gRPC server's health says that it serves."""
    with grpc.insecure_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        serving = health_pb2.HealthCheckResponse.SERVING
        assert any(reply.status == serving for reply in watch)


def wait_for_record(address: str) -> str:
    """Wait until a GPS has a run's record; the run's id."""
    with grpc.insecure_channel(address) as channel:
        *_, last = RunServiceStub(channel).WatchRun(pb.WatchRunRequest(), timeout=60, wait_for_ready=True)
    assert last.phase == "completed", last.reason
    return str(last.run_id)


def until_begun(out: Path) -> Path:
    """Wait until a run's GPS has state in the folder of a sweep; the run's folder."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in out.glob("runs/*/*/state/gps/*"):
            return path.parents[2]
        time.sleep(0.05)
    raise AssertionError(f"no run has begun in {out}")
