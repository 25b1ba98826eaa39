"""Boards reach the GPS and two LPSs at one address: HAProxy reads the names of servers, and decrypts nothing."""

import shutil
import socket
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from fedstrata.trust.authority import Authority
from fedstrata.trust.names import Name
from fedstrata.trust.tls_files import GPS, TlsFiles
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceStub
from tests.support import haproxy
from tests.support.programs import Program
from tests.support.records import assert_same_result
from tests.support.tiers import SMALL

pytestmark = [
    pytest.mark.runs,
    pytest.mark.skipif(haproxy.BINARY is None, reason=haproxy.REASON),
    pytest.mark.skipif(not shutil.which("ss"), reason="needs ss of iproute2, which shows the kernel's connections"),
]
DEVICES = Name("device", "device-000", "device-004")


@dataclass(frozen=True)
class Finished:
    """A run: its record, the ports of its servers and of the proxy, and those that its devices were connected to."""

    record: Path
    servers: set[int]
    proxy: int
    called: set[int]


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def called_ports(pid: int) -> set[int]:
    """The remote ports of a process's open connections, as the kernel has them."""
    shown = subprocess.run(["ss", "-tnpHO", "state", "established"], capture_output=True, text=True, check=True)
    return {port_of(line.split()[3]) for line in shown.stdout.splitlines() if f"pid={pid}," in line}


def called_until_completed(gps: str, folder: Path, pid: int) -> set[int]:
    """Wait until the run is completed, as an operator. Return all ports that a process was connected to when there was
    news of the run.
    """
    tls, called, last = TlsFiles.load(folder), set[int](), ("", "")
    with grpc.secure_channel(gps, tls.channel_credentials(), options=tls.channel_options(GPS)) as channel:
        for status in RunServiceStub(channel).WatchRun(pb.WatchRunRequest(), timeout=100, wait_for_ready=True):
            called, last = called | called_ports(pid), (status.phase, status.reason)
    assert last == ("completed", "")
    return called


def finished(folder: Path, domain: str) -> Finished:
    """A run of five devices; with a domain, they know one address alone."""
    folder.mkdir()
    (folder / "small.yaml").write_text(SMALL)
    authority = Authority.new("run-1")

    with ExitStack() as stack:
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = f"127.0.0.1:{door.getsockname()[1]}"

        def start(tier: str, name: Name, *words: str) -> Program:
            tls = folder / "tls" / str(name)
            authority.issue([name], tls, server_domain=domain if tier != "device" else "")
            words = ("--experiment", str(folder / "small.yaml"), "--tls", str(tls), *words)
            log = folder / f"{str(name).replace('/', '-')}.log"
            return stack.enter_context(Program(tier, *words, log=log))

        gps = start("gps", GPS, "--state", str(folder / "gps")).addresses()["grpc"]
        servers = {"gps": gps}
        for who in ("lps-0", "lps-1"):
            words = ["--gps", gps, "--lps-id", who, "--state", str(folder / who)]
            words += ["--advertise", address] if domain else []
            servers[who] = start("lps", Name("lps", who), *words).addresses()["grpc"]
        way = ["--gps", gps]
        if domain:
            stack.enter_context(haproxy.proxied(door, servers, folder))
            way = ["--gps", address, "--server-domain", domain]
        devices = start("device", DEVICES, *way, "--devices", "0-4", "--stay")
        authority.issue([Name("operator")], folder / "tls" / "operator")
        called = called_until_completed(gps, folder / "tls" / "operator", devices.process.pid)
    (record,) = (folder / "gps").glob("*/record")
    ports = {port_of(server) for server in servers.values()}
    return Finished(record=record, servers=ports, proxy=port_of(address), called=called)


def test_devices_that_reach_one_port_train_the_same_models(tmp_path: Path) -> None:
    through, straight = finished(tmp_path / "through", haproxy.DOMAIN), finished(tmp_path / "straight", "")
    assert through.called == {through.proxy}
    assert straight.called == straight.servers
    assert_same_result(through.record, straight.record)
