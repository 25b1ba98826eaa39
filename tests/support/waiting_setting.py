"""A GPS that waits for devices and LPSs, by a clock that a test sets."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fedstrata.methods import Plan
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.trust.security import TlsSecurity
from fedstrata.trust.tls_files import Revoked
from fedstrata.v1 import gps_service_pb2 as pb
from gps.hosting.serving import Serving
from gps.hosting.waiting import Waiting
from gps.journal.answers import BEFORE
from tests.support.gps_parts import GpsParts


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Setting:
    """A GPS's parts with devices 0 to 2 in lps-0, 3 and 4 in lps-1."""

    def __init__(self, folder: Path) -> None:
        self.gps = GpsParts(folder)
        self.places = self.gps.places
        self.clock = Clock()
        self.revoked = Revoked()
        security = TlsSecurity(cast(Any, SimpleNamespace(require=print, revoked=lambda: self.revoked)))
        self.serving = Serving(self.gps.experiment, self.places, self.gps.journal, security, self.clock)
        self.metrics = ProcessMetrics("gps")
        self.waiting = Waiting(
            self.gps.roster,
            self.places,
            self.serving,
            questions=["profile", "relevance"],
            metrics=self.metrics,
            log=EventLog("test"),
            clock=self.clock,
        )

    def group(self) -> None:
        self.gps.enrol(*range(5))
        self.gps.places.make(BEFORE, Plan(clusters=((0, 1, 2), (3, 4)), rule="as given"))

    def named(self, phase: str) -> dict[str, float]:
        return {wait.name: wait.seconds for wait in self.waiting.look(phase)}

    def after(self, seconds: float, phase: str) -> dict[str, float]:
        self.waiting.look(phase)
        self.clock.now += seconds
        return self.named(phase)

    def ask(self, lps_id: str, *waits: pb.Wait) -> Any:
        return self.waiting.call_of(pb.FetchClustersRequest(lps_id=lps_id, waits=waits))
