"""Real processes with certificates, strangers among them: a run is the same with TLS and without, and goes on."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from emulator.runs.client import RunClient
from fedstrata.errors import HandshakeError
from fedstrata.trust.authority import Authority
from fedstrata.trust.files import TlsFiles
from fedstrata.trust.names import Name
from fedstrata.trust.security import TlsSecurity
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceStub
from tests.support.programs import Program, events, http_get
from tests.support.tiers import SMALL

GPS = Name("gps")
DEVICES = [Name("device", "device-000", "device-004")]


@dataclass
class Secured:
    """A GPS with a certificate, and whoever else a test starts with which certificate. A context manager."""

    folder: Path
    authority: Authority = field(default_factory=lambda: Authority.new("run-1"))
    experiment: str = SMALL
    stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "Secured":
        (self.folder / "small.yaml").write_text(self.experiment)
        gps = self.start("gps", "gps", self.issued("gps", GPS), "--state", str(self.folder / "state"))
        addresses = gps.addresses()
        self.gps, self.http = addresses["grpc"], addresses["http"]
        return self

    def __exit__(self, *raised: object) -> None:
        self.stack.close()

    def issued(self, name: str, *names: Name, by: Authority | None = None) -> Path:
        """The folder with a certificate of the run's authority, or another's."""
        (by or self.authority).issue(names, self.folder / "tls" / name)
        return self.folder / "tls" / name

    def start(self, tier: str, name: str, tls: Path | None, *words: str) -> Program:
        shown = ("--tls", str(tls)) if tls else ()
        words = ("--experiment", str(self.folder / "small.yaml"), *shown, *words)
        return self.stack.enter_context(Program(tier, *words, log=self.folder / f"{name}.log"))

    def devices(self, name: str, tls: Path | None) -> Program:
        return self.start("device", name, tls, "--gps", self.gps, "--devices", "0-4")

    def lps(self, name: str, tls: Path | None, number: int = 0) -> Program:
        words = ("--gps", self.gps, "--lps-id", f"lps-{number}", "--state", str(self.folder / f"state-{name}"))
        return self.start("lps", name, tls, *words)

    def complete(self) -> None:
        """Start all who belong to the run, and wait for its end."""
        self.start_all()
        *_, last = self.statuses()
        assert (last.phase, last.reason) == ("completed", "")

    def start_all(self) -> list[Program]:
        """Start all who belong to the run; gives its LPSs."""
        folders = [self.issued(f"lps-{number}", Name("lps", f"lps-{number}")) for number in range(2)]
        lpss = [self.lps(folder.name, folder, number) for number, folder in enumerate(folders)]
        self.devices("devices", self.issued("devices", *DEVICES))
        return lpss

    def statuses(self) -> Iterator[pb.RunStatus]:
        """How the run stands, until its end."""
        with self.channel(self.issued("operator", Name("operator"))) as channel:
            yield from RunServiceStub(channel).WatchRun(pb.WatchRunRequest(), timeout=100, wait_for_ready=True)

    def channel(self, tls: Path) -> grpc.Channel:
        files = TlsFiles.load(tls)
        return grpc.secure_channel(self.gps, files.channel_credentials(), options=files.channel_options(GPS))


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    with Secured(tmp_path) as run:
        yield run


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
def test_strangers_end_in_one_line_and_the_run_goes_on(secured: Secured) -> None:
    for program, code, reason in strangers(secured):
        assert program.end() == code, program.log_path.read_text()
        (line,) = program.errors()
        assert line.startswith("error: ")
        assert reason in line
    secured.complete()


def calls(stub: RunServiceStub) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "StopRun", lambda: stub.StopRun(pb.StopRunRequest(reason="by a device"), timeout=20)
    yield "WatchRun", lambda: list(stub.WatchRun(pb.WatchRunRequest(), timeout=20))
    yield "FetchRecord", lambda: list(stub.FetchRecord(pb.FetchRecordRequest(), timeout=20))


def test_a_device_cannot_stop_or_watch_the_run_and_its_tries_are_logged_and_counted(secured: Secured) -> None:
    with secured.channel(secured.issued("one", Name("device", "device-000"))) as channel:
        for name, call in calls(RunServiceStub(channel)):
            with pytest.raises(grpc.RpcError, match=f"device/device-000 may not call {name}; allowed: operator"):
                call()
    secured.complete()
    _, page = http_get(secured.http, "/metrics")
    assert 'fedstrata_refused_total{reason="role"} 3.0' in page
    refused = [event for event in events(secured.folder / "gps.log") if event["event"] == "call_refused"]
    assert len([event for event in refused if event["status"] == "PERMISSION_DENIED"]) == 3


def test_an_lps_with_a_certificate_does_not_speak_to_a_gps_in_the_clear(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    words = ("--experiment", str(tmp_path / "small.yaml"))
    with Program("gps", *words, "--state", str(tmp_path / "gps"), log=tmp_path / "gps.log") as gps:
        address = gps.addresses()["grpc"]
        Authority.new("run-1").issue([Name("lps", "lps-0")], tmp_path / "tls")
        where = ("--gps", address, "--state", str(tmp_path / "lps"), "--tls", str(tmp_path / "tls"))
        with Program("lps", *words, *where, "--lps-id", "lps-0", log=tmp_path / "lps.log") as lps:
            assert lps.end() == 7
        (line,) = lps.errors()
    assert (
        line == f"error: gps at {address} does not speak TLS; start it with --tls, or start this process without --tls"
    )


async def test_an_operator_of_another_authority_hears_at_once_that_it_is_not_trusted(secured: Secured) -> None:
    security = TlsSecurity(TlsFiles.load(secured.issued("op", Name("operator"), by=Authority.new("run-1"))))
    async with RunClient(secured.gps, security) as client, asyncio.timeout(30):
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
