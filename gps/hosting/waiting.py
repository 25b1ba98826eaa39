"""The devices and LPSs that a run waits for, and since when. LPSs report the devices that they wait for."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.quoting import quoted
from fedstrata.process.waiting import Changes
from fedstrata.rounds.parent.report_checks import LONGEST_S
from fedstrata.rpc.messages import checked_number
from fedstrata.v1 import gps_service_pb2 as pb
from gps.devices.roster import Roster
from gps.hosting.reports import Reports
from gps.hosting.serving import Serving
from gps.plans.global_rounds import GlobalRounds
from gps.plans.places import Places

LOOK_S = 1.0
PATIENCE_S = 5.0  # shorter waits are not reported
START_S = 60.0  # time for processes to start before an Event names the missing ones
REMINDED_S = 60.0  # an Event names the same device or LPS at most once in this time
WAITS_MAX = 100
NAMED_MAX = 10  # names in one Event, one log line, and as series of the metric


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Describe how long the run has waited for one device or LPS."""

    name: str
    what: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name} ({self.what}, {self.seconds:.0f} s)"


class Run(Protocol):
    """Define the parts of a run that `Waiting` uses."""

    phase: str
    rounds: GlobalRounds
    reports: Reports
    roster: Roster

    def tell_soon(self) -> None:
        """Wake all observers of the run soon, so that they look at its state again."""


class Waiting:
    """Find the devices and LPSs that the run waits for. The sources are the roster, the open calls of LPSs, and the
    devices that LPSs name in these calls.
    """

    def __init__(
        self, roster: Roster, places: Places, serving: Serving, *, questions: Sequence[str], metrics: ProcessMetrics,
        log: EventLog, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Set `questions`, the names of the questions before training that every device answers."""
        self._roster = roster
        self._places = places
        self._serving = serving
        self._questions = questions
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._since: dict[tuple[str, str], float] = {}
        self._said_by_lps: dict[str, list[tuple[str, str, float]]] = {}  # by LPS: (name, what, since)
        self._calls: Counter[str] = Counter()
        self._noted: dict[str, float] = {}  # by name: when an Event last named it
        self._progress: object = None
        self.waits: list[Wait] = []

    # --- what LPSs say ------------------------------------------------------------------------

    @contextmanager
    def call_of(self, request: pb.FetchClustersRequest) -> Iterator[None]:
        """Run a block during a call of an LPS. Note that the LPS is present, and for which devices it waits.

        Raises:
            PayloadError: the LPS reports an impossible time.
        """
        now, said = self._clock(), f"{quoted(request.lps_id)} says that it has waited for"
        self._said_by_lps[request.lps_id] = [
            (wait.name[:80], wait.what[:200], now - checked_number(wait.seconds, 0, LONGEST_S, said))
            for wait in request.waits[:WAITS_MAX]
        ]
        self._calls[request.lps_id] += 1
        try:
            yield
        finally:
            self._calls[request.lps_id] -= 1

    # --- who is missing -----------------------------------------------------------------------

    def look(self, phase: str) -> list[Wait]:
        """Return the devices and LPSs that the run has long waited for, longest wait first."""
        now = self._clock()
        missing = dict(self._missing(phase))
        self._since = {key: self._since.get(key, min(now, since or now)) for key, since in missing.items()}
        waits = [Wait(name=name, what=what, seconds=now - since) for (name, what), since in self._since.items()]
        waits = [wait for wait in waits if wait.seconds >= PATIENCE_S]
        self.waits = sorted(waits, key=lambda wait: (-wait.seconds, wait.name))[:WAITS_MAX]
        return self.waits

    def _missing(self, phase: str) -> Iterator[tuple[tuple[str, str], float | None]]:
        """Yield ((name, what), since) for each missing device or LPS. `what` says what the run waits for. `since` is
        the start of the wait if an LPS has reported the wait, otherwise None.
        """
        if phase == "enrolment":
            yield from (((name, "to enrol"), None) for name in self._roster.absent_founders())
        if phase in {"enrolment", "relevance"}:
            due = self._questions[:1] if phase == "enrolment" else self._questions
            what = f"its answer to {due[-1]}" if due else ""
            yield from (((device.device_id, what), None) for device in self._roster.behind(due))
        if self._roster.awaits_newcomers:
            yield from (((name, "to join"), None) for name in self._roster.unplaced_newcomers())
        if phase in {"training", "evaluation"}:
            yield from self._missing_in_training()

    def _missing_in_training(self) -> Iterator[tuple[tuple[str, str], float | None]]:
        for home_id in self._places.homes:
            lps_id = self._serving.lps_of(home_id)
            if self._serving.presence.is_revoked(lps_id):
                yield (lps_id, "to be replaced: its certificate is revoked, and no other LPS is there; start one"), None
            elif not self._calls[lps_id]:
                yield (lps_id, "to serve its clusters"), None
            else:
                said = self._said_by_lps.get(lps_id, ())
                yield from (((name, what), since) for name, what, since in said)

    # --- telling ------------------------------------------------------------------------------

    async def watch(self, run: Run, note: Callable[..., None]) -> None:
        """Look once a second for the devices and LPSs that the run waits for, until cancelled. Show these waits in
        metrics, status and log. Call `note` to write them as Kubernetes Events.
        """
        while True:
            progress, before = _progress_of(run), self.waits
            if progress != self._progress:
                self._progress = progress
                self._metrics.progressed()
            waits = self.look(run.phase)
            self._metrics.waits({wait.name: wait.seconds for wait in waits[:NAMED_MAX]}, len(waits))
            if [(wait.name, wait.what) for wait in waits] != [(wait.name, wait.what) for wait in before]:
                self._log.info("waits_for", waits=[str(wait) for wait in waits[:NAMED_MAX]], all=len(waits))
                run.tell_soon()
            self._note(waits, run.phase, note)
            await Changes().wait_until(lambda: False, LOOK_S)

    def end(self) -> None:
        """Show that the run no longer waits for any device or LPS, because the run is over."""
        self.waits = []
        self._metrics.waits({}, 0)

    def _note(self, waits: list[Wait], phase: str, note: Callable[..., None]) -> None:
        """Write an Event about all waits, if an Event is due for at least one of them. For a long wait, an Event is due
        if no Event in the last `REMINDED_S` seconds was about the same device or LPS.
        """
        now = self._clock()
        patience_s = START_S if phase == "enrolment" else PATIENCE_S
        due = [w for w in waits if w.seconds >= patience_s and now - self._noted.get(w.name, -REMINDED_S) >= REMINDED_S]
        if not due:
            return
        self._noted |= {wait.name: now for wait in waits}
        more = len(waits) - NAMED_MAX
        named = ", ".join(str(wait) for wait in waits[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        note("WaitsFor", f"the run waits for {named}", is_warning=True)


def _progress_of(run: Run) -> object:
    """Return a value that changes whenever the run makes progress."""
    rounds = {home_id: row.lps_round for home_id, row in run.reports.latest_rounds.items()}
    return run.phase, run.rounds.global_round, run.roster.states(), rounds


def to_proto(waits: list[Wait]) -> list[pb.Wait]:
    """Return the waits as protobuf messages, which are part of the run's status."""
    return [pb.Wait(name=wait.name, what=wait.what, seconds=wait.seconds) for wait in waits]
