"""Runs with certificates and strangers among them: each is told why it has no part, and the run goes on."""

import asyncio
from collections.abc import Awaitable, Iterator
from pathlib import Path

import grpc
import pytest
from prometheus_client import generate_latest

from emulator.runs.run_client import RunClient
from fedstrata.errors import HandshakeError
from fedstrata.rpc.client import Connection
from fedstrata.trust.authority import Authority
from fedstrata.trust.names import Name
from fedstrata.trust.security import TlsSecurity
from fedstrata.trust.tls_files import TlsFiles
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceStub
from tests.support.programs import Program
from tests.support.secured import Secured
from tests.support.tiers import SMALL, Tiers, small


def strangers(run: Secured) -> Iterator[tuple[Program, int, str]]:
    """Processes that cannot take part, with the code and the reason that each should end with."""
    other, lps = Authority.new("run-1"), Name("lps", "lps-0")
    yield run.lps("by-another", run.issued("by-another", lps, by=other)), 7, "does not accept"
    yield run.lps("in-the-clear", None), 7, "speaks TLS, and this process has no certificate"
    mixed = run.issued("mixed", lps, by=other)
    (mixed / "ca.pem").write_bytes((run.folder / "tls" / "gps" / "ca.pem").read_bytes())
    yield run.lps("mixed", mixed), 2, "cert.pem cannot be used: "
    yield run.lps("nothing", run.folder / "not-there"), 2, "ca.pem: No such file or directory; --tls must name a folder"
    elsewhere = Authority(domain="run-2", certificate=run.authority.certificate, key=run.authority.key)
    yield run.lps("run-2", run.issued("run-2", lps, by=elsewhere)), 2, "belongs to run 'run-2', but this is 'run-1'"
    yield run.lps("device", run.issued("device", Name("device", "lps-0"))), 2, "this process is lps/lps-0"
    one = run.issued("one", Name("device", "device-000"))
    yield (
        run.devices("several", one),
        2,
        "is the certificate of device/device-000, but this process is device/device-001",
    )


@pytest.mark.runs
def test_strangers_end_in_one_line_and_the_run_goes_on(tmp_path: Path) -> None:
    with Secured(tmp_path) as run:
        for program, code, reason in list(strangers(run)):
            assert program.end() == code, program.log_path.read_text()
            (line,) = program.errors()
            assert line.startswith("error: ")
            assert reason in line
        run.complete()


def calls(stub: RunServiceStub) -> Iterator[tuple[str, Awaitable[object]]]:
    yield "StopRun", stub.StopRun(pb.StopRunRequest(reason="by a device"))
    yield "WatchRun", stub.WatchRun(pb.WatchRunRequest()).read()
    yield "FetchRecord", stub.FetchRecord(pb.FetchRecordRequest()).read()


async def test_a_device_cannot_stop_or_watch_the_run_and_its_tries_are_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with Tiers(small(), tmp_path / "run", authority=Authority.new("run-1")) as tiers:
        async with Connection(tiers.address, tiers.issued("one", Name("device", "device-000"))) as channel:
            for name, call in calls(RunServiceStub(channel)):
                with pytest.raises(grpc.RpcError, match=f"device/device-000 may not call {name}; allowed: operator"):
                    await call
        await tiers.start_devices()
        assert (await tiers.ended()).summary.status == "completed"
    assert b'fedstrata_refused_total{reason="role"} 3.0' in generate_latest(tiers.metrics.registry)
    refused = [vars(record) for record in caplog.records if "call_refused" in str(vars(record))]
    assert len([event for event in refused if "PERMISSION_DENIED" in str(event)]) == 3


async def test_an_operator_of_another_authority_hears_at_once_that_it_is_not_trusted(tmp_path: Path) -> None:
    Authority.new("run-1").issue([Name("operator")], tmp_path / "other")
    other = TlsSecurity(TlsFiles.load(tmp_path / "other"))
    async with (
        Tiers(small("method.clusters=auto"), tmp_path / "run", authority=Authority.new("run-1")) as tiers,
        RunClient(tiers.address, other) as client,
        asyncio.timeout(30),
    ):
        with pytest.raises(HandshakeError, match="does not accept"):
            await anext(client.watch())


def test_a_folder_with_a_certificate_may_come_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    words = ("--experiment", str(tmp_path / "small.yaml"), "--state", str(tmp_path / "gps"))
    environment = {"FEDSTRATA_TLS": str(tmp_path / "not-there")}
    with Program("gps", *words, log=tmp_path / "log", environment=environment) as gps:
        assert gps.end() == 2
    assert gps.errors() == [
        f"error: {tmp_path}/not-there/ca.pem: No such file or directory; --tls must name a folder with ca.pem, "
        "cert.pem and key.pem"
    ]
