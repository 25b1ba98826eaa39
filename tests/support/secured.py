"""Real processes of one run with certificates: a GPS, and whoever else a test starts with which certificate."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from fedstrata.trust.authority import Authority
from fedstrata.trust.names import Name
from fedstrata.trust.tls_files import TlsFiles
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceStub
from tests.support.programs import Program
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
