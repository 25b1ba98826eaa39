"""A run of three programs with a large model: what they serve and count, and gps and lps in it without torch."""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.support.programs import (
    LINKS,
    Counts,
    Program,
    http_get,
    scraped_bytes,
    total_bytes,
    wait_for_record,
    wait_for_serving,
)
from tests.support.records import summary_of

# 64 × 40,000 + 40,000 + 40,000 × 10 + 10 weights of 4 bytes: 12 MB, 10.4 MB of them in the shared layer.
BIG = """
name: big
partition: {kind: iid, devices: 2, examples_per_device: 16}
model: {name: mlp, hidden: [40000]}
method: {name: random, clusters: 1}
training: {global_rounds: 2, lps_rounds_per_global_round: 1, local_steps: 1, batch_size: 16}
"""


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


@pytest.fixture(scope="module")
def big_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigRun]:
    """A run with a model of 12 MB by three programs, which stay until the tests of this file have ended."""
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
            summary=summary_of(folder / "gps" / run_id / "record"),
        )


# --- what they serve


@pytest.mark.parametrize(
    ("tier", "services"),
    [("gps", {"fedstrata.v1.GpsService", "fedstrata.v1.RunService"}), ("lps", {"fedstrata.v1.LpsService"})],
)
def test_the_servers_describe_themselves(big_run: BigRun, tier: str, services: set[str]) -> None:
    with grpc.insecure_channel(big_run.grpc[tier]) as channel:
        known = ProtoReflectionDescriptorDatabase(channel)
        listed = set(known.get_services())
        assert listed == services | {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        for service in services:
            file = known.FindFileContainingSymbol(service)
            assert service.rpartition(".")[2] in [described.name for described in file.service]


@pytest.mark.parametrize("tier", ["gps", "lps", "device"])
def test_every_process_is_ready_and_alive_and_counts_its_bytes(big_run: BigRun, tier: str) -> None:
    assert http_get(big_run.http[tier], "/healthz") == (200, "200 OK\n")
    assert http_get(big_run.http[tier], "/readyz") == (200, "200 OK\n")
    page = http_get(big_run.http[tier], "/metrics")[1]
    assert "# TYPE fedstrata_link_bytes_total counter" in page
    assert 'fedstrata_link_bytes_total{direction="up",end="' in page
    assert http_get(big_run.http[tier], "/elsewhere")[0] == 404


def test_the_metrics_have_the_documented_names_and_values(big_run: BigRun) -> None:
    at_gps, at_lps = (http_get(big_run.http[tier], "/metrics")[1] for tier in ("gps", "lps"))
    assert 'fedstrata_round{tier="gps"} 2.0' in at_gps
    assert 'fedstrata_round_duration_seconds_count{tier="gps"} 2.0' in at_gps
    assert 'fedstrata_updates_total{outcome="accepted",tier="gps"} 2.0' in at_gps
    assert 'fedstrata_devices{state="assigned"} 2.0' in at_gps
    assert 'fedstrata_accuracy_ratio{lps_id="lps-0"} ' in at_gps
    assert 'fedstrata_loss{lps_id="lps-0"} ' in at_gps
    assert 'fedstrata_round{tier="lps"} 2.0' in at_lps
    assert 'fedstrata_round_duration_seconds_count{tier="lps"} 2.0' in at_lps
    assert 'fedstrata_updates_total{outcome="accepted",tier="lps"} 4.0' in at_lps


# --- torch


def test_a_whole_run_needs_no_torch_at_the_gps_and_the_lps(big_run: BigRun) -> None:
    assert big_run.summary["status"] == "completed"
    assert big_run.summary["devices"] == 2
    for tier in ("gps", "lps"):
        assert "libtorch" not in Path(f"/proc/{big_run.pids[tier]}/maps").read_text()
    assert "libtorch" in Path(f"/proc/{big_run.pids['device']}/maps").read_text()


def test_an_idle_lps_takes_less_than_100_mb(big_run: BigRun) -> None:
    resident = re.search(r"VmRSS:\s+(\d+) kB", big_run.idle_status)
    assert resident
    assert int(resident[1]) * 1024 < 100e6


def test_the_environment_of_these_tests_does_refuse_torch(tmp_path: Path) -> None:
    with Program("device", "--help", log=tmp_path / "log", without=["torch"]) as program:
        assert program.end() == 1
    assert program.errors()[-1] == "ModuleNotFoundError: No module named 'torch': refused by the test"


# --- bytes


def test_the_processes_serve_the_counts_that_the_record_adds_up(big_run: BigRun) -> None:
    counts: Counts = Counter()
    for address in big_run.http.values():
        counts.update(scraped_bytes(address))
    assert big_run.summary["bytes"] == {
        link: {way: total_bytes(counts, link, way, "parent") for way in ("up", "down")} for link in LINKS
    }
    children = {key[:3]: count for key, count in counts.items() if key[3] == "child" and count}
    assert children == {key[:3]: count for key, count in counts.items() if key[3] == "parent" and count}


@pytest.mark.skipif(not shutil.which("ss"), reason="needs ss of iproute2, which shows the kernel's counts")
@pytest.mark.parametrize(("child", "parent", "link"), [("device", "lps", "device-lps"), ("lps", "gps", "lps-gps")])
def test_the_kernel_counts_the_same_within_two_percent(big_run: BigRun, child: str, parent: str, link: str) -> None:
    sent, received = kernel_counts(big_run.pids[child], port=int(big_run.grpc[parent].rpartition(":")[2]))
    counts: Counts = Counter(scraped_bytes(big_run.http[child]))
    up, down = (total_bytes(counts, link, way, "child") for way in ("up", "down"))
    assert min(up, down) > 10_000_000
    assert up <= sent <= 1.02 * up
    assert down <= received <= 1.02 * down


def kernel_counts(pid: int, *, port: int) -> tuple[int, int]:
    """Bytes that the kernel sent and received on a process's connections to a local port."""
    shown = subprocess.run(
        ["ss", "-tinpHO", "state", "established", f"dport = :{port}"], capture_output=True, text=True, check=True
    )
    lines = [line for line in shown.stdout.splitlines() if f"pid={pid}," in line]
    assert lines, f"process {pid} has no connection to port {port} any more: {shown.stdout}"
    return field_sum(lines, "bytes_sent"), field_sum(lines, "bytes_received")


def field_sum(lines: list[str], name: str) -> int:
    return sum(int(found[1]) for line in lines if (found := re.search(rf"\b{name}:(\d+)", line)))
