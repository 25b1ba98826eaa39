"""A GPS with three clusters and LPSs that serve them, by a clock that a test sets."""

from pathlib import Path

from fedstrata.methods import Plan
from fedstrata.trust.security import OPEN, Security
from fedstrata.v1 import gps_service_pb2 as pb
from gps.hosting.serving import Serving
from gps.journal.answers import BEFORE
from tests.support.gps_parts import GpsParts

PLAN = Plan(clusters=((0, 2), (1,), (3, 4)), rule="3 as given")


class Setting:
    """Three clusters and the serving of them, at a time that the test sets."""

    def __init__(self, folder: Path, *overrides: str, security: Security = OPEN) -> None:
        self.security = security
        self.gps = GpsParts(folder, *overrides)
        self.gps.enrol(*range(5))
        self.now = 100.0
        self._open()
        self.places.make(BEFORE, PLAN)

    def _open(self) -> None:
        self.places = self.gps.places
        self.serving = Serving(self.gps.experiment, self.places, self.gps.journal, self.security, lambda: self.now)

    def restart(self) -> None:
        self.gps.restart()
        self._open()

    def registration(self, lps_id: str, address: str = "10.0.0.7:50052") -> pb.RegisterLpsRequest:
        return pb.RegisterLpsRequest(lps_id=lps_id, address=address, experiment_sha256=self.gps.experiment.digest)

    def register(self, *numbers: int) -> None:
        for number in numbers:
            self.serving.register(self.registration(f"lps-{number}", f"10.0.0.{number}:50052"))

    def pass_s(self, seconds: float, *living: int) -> None:
        """Let time go by, at whose end some LPSs are heard of."""
        self.now += seconds
        for number in living:
            self.serving.presence.hear(f"lps-{number}")

    def adopt(self) -> None:
        for home_id, lps_id in self.serving.adoptable().items():
            self.serving.hand_over(home_id, lps_id, 2)
