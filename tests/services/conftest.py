"""Runs that several test files look at: made once."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from programs import Program
from tiers import SMALL

from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceStub

# 64 × 40,000 + 40,000 + 40,000 × 10 + 10 weights of 4 bytes: 12 MB, 10.4 MB of them in the shared layer.
BIG = """
name: big
partition: {kind: iid, devices: 2, examples_per_device: 16}
model: {name: mlp, hidden: [40000]}
method: {name: random, clusters: 1}
training: {global_rounds: 2, lps_rounds_per_global_round: 1, local_steps: 1, batch_size: 16}
"""


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """What `fedstrata run` left: its folder, and the lines it printed."""

    folder: Path
    exit_code: int
    printed: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class BigRun:
    """Three programs, by tier, after a run with a large model, all of them still there and connected.

    The GPS and the LPS are in an environment where torch cannot be imported.
    """

    programs: Mapping[str, Program]
    http: Mapping[str, str]
    grpc: Mapping[str, str]
    idle_status: str  # /proc/PID/status of the LPS when it was registered and had no device yet
    summary: Mapping[str, Any]

    @property
    def pids(self) -> dict[str, int]:
        return {tier: program.process.pid for tier, program in self.programs.items()}


@pytest.fixture(scope="session")
def cli_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, FinishedRun]:
    """Runs of the small experiment by `fedstrata run`, by the number of device processes."""
    folder = tmp_path_factory.mktemp("cli_runs")
    (folder / "small.yaml").write_text(SMALL)
    started = {}
    with ExitStack() as programs:
        for processes in (1, 4):
            words = ("run", str(folder / "small.yaml"), "--out", str(folder / f"by-{processes}"), "--json")
            program = Program("emulator", *words, "--device-processes", str(processes), log=folder / f"{processes}.log")
            started[processes] = programs.enter_context(program)
        return {
            processes: FinishedRun(
                folder=folder / f"by-{processes}", printed=list(program.lines()), exit_code=program.end()
            )
            for processes, program in started.items()
        }


@pytest.fixture(scope="session")
def big_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigRun]:
    """A run with a model of 12 MB by three programs, which stay until the tests have ended."""
    folder = tmp_path_factory.mktemp("big_run")
    file, servers = folder / "big.yaml", {"without": ["torch"]}
    file.write_text(BIG)
    common = ("--experiment", str(file))
    with ExitStack() as stack:
        gps = stack.enter_context(
            Program("gps", *common, "--state", str(folder / "gps"), log=folder / "gps.log", **servers)
        )
        at_gps = gps.addresses()
        to_gps = (*common, "--gps", at_gps["grpc"])
        words = (*to_gps, "--lps-id", "lps-0", "--state", str(folder / "lps"))
        lps = stack.enter_context(Program("lps", *words, log=folder / "lps.log", **servers))
        at_lps = lps.addresses()
        wait_for_serving(at_lps["grpc"])
        idle_status = Path(f"/proc/{lps.process.pid}/status").read_text()
        words = (*to_gps, "--devices", "0-1", "--stay")
        device = stack.enter_context(Program("device", *words, log=folder / "device.log"))
        at_device = device.addresses()
        run_id = wait_for_record(at_gps["grpc"])
        yield BigRun(
            programs={"gps": gps, "lps": lps, "device": device},
            http={"gps": at_gps["http"], "lps": at_lps["http"], "device": at_device["http"]},
            grpc={"gps": at_gps["grpc"], "lps": at_lps["grpc"]},
            idle_status=idle_status,
            summary=json.loads((folder / "gps" / run_id / "record" / "summary.json").read_text()),
        )


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the tests of a file share."""
    return tmp_path_factory.mktemp("shared")
