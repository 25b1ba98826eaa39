"""Show the progress of a sweep in one of three displays: how many runs are finished, and how long the other runs may
take.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from emulator.console.json_lines import print_json
from emulator.console.units import NO_VALUE, human_seconds, measured
from emulator.results.over_seeds import headlines_of
from emulator.results.read_record import RunRecord
from emulator.runs.progress import can_draw_over, progress_line, restart_line
from emulator.sweeps.file import Place, SweepRun
from fedstrata.errors import FedstrataError
from fedstrata.process.child_processes import Restart
from fedstrata.process.quoting import printable
from fedstrata.v1 import gps_service_pb2 as pb

FAILURES_SHOWN = 5


class Pace:
    """Measure how fast a sweep proceeds: count finished runs, and estimate the time until the end of the sweep."""

    def __init__(
        self, *, waiting: Sequence[SweepRun], done: int, jobs: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._waiting = {run.path: run.place for run in waiting}
        self._running: dict[Path, tuple[Place, float]] = {}
        self._took: dict[Place, list[float]] = {}
        self._jobs, self._clock = jobs, clock
        self.done, self.runs = done, done + len(waiting)

    def began(self, run: SweepRun) -> None:
        self._running[run.path] = (self._waiting.pop(run.path), self._clock())

    def ended(self, run: SweepRun) -> None:
        place, began = self._running.pop(run.path)
        self._took.setdefault(place, []).append(self._clock() - began)
        self.done += 1

    def ended_elsewhere(self, run: SweepRun, seconds: float) -> None:
        """Count a run that another process has done in this number of seconds."""
        self._took.setdefault(self._waiting.pop(run.path), []).append(seconds)
        self.done += 1

    def seconds_left(self) -> float | None:
        """Return the expected seconds until the end of the sweep. Until the first run has ended, return None."""
        if not self._took:
            return None
        now = self._clock()
        running, waiting = list(self._running.values()), list(self._waiting.values())  # a display draws in a thread
        rests = [max(0.0, self._expected(place) - (now - began)) for place, began in running]
        waits = sum(map(self._expected, waiting))
        return max([(sum(rests) + waits) / self._jobs, *rests])

    def _expected(self, place: Place) -> float:
        """Return the expected seconds of a run in a row of the sweep's table (`place`). This is the mean over the
        finished runs in the same row, which differ only in their seeds. If no run of the row has finished, it is the
        mean over all finished runs.
        """
        return fmean(self._took.get(place) or [seconds for each in list(self._took.values()) for seconds in each])

    def __str__(self) -> str:
        left = self.seconds_left()
        return f"{self.done}/{self.runs}" + ("" if left is None else f", {human_seconds(left)} left")


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """Hold how one run ended. `record` is None if the run failed."""

    folder: Path
    seconds: float
    record: RunRecord | None
    failure: FedstrataError | None

    def __str__(self) -> str:
        said = NO_VALUE if self.record is None else measured(self.record.summary.mean, self.record.headline)
        said = f"failed: {printable(str(self.failure))}" if self.failure else said
        return f"{said}, {human_seconds(self.seconds)}"


class SweepDisplay:
    """Define how the progress of a sweep is shown. This base class shows nothing."""

    pace: Pace

    def open(self, pace: Pace) -> AbstractContextManager[Any]:
        """Return a context manager. The display may draw while its block runs."""
        self.pace = pace
        return nullcontext()

    def show(self, run: SweepRun, status: pb.RunStatus) -> None:
        """Show the present status of a run."""

    def restarted(self, run: SweepRun, restart: Restart) -> None:
        """Show that a process of a run died and is started again."""

    def ended(self, run: SweepRun, end: RunEnd) -> None:
        """Show the end of a run."""


class SweepJson(SweepDisplay):
    """Print one JSON object per run, each on one line."""

    def ended(self, run: SweepRun, end: RunEnd) -> None:
        left = self.pace.seconds_left()
        print_json({
            "event": "run", "cell": run.place.cell, "setting": dict(run.place.setting), "seed": run.seed,
            "status": "failed" if end.failure else "completed", "reason": str(end.failure) if end.failure else None,
            "folder": str(end.folder), **_headline(end.record), "seconds": round(end.seconds, 3),
            "done": self.pace.done, "runs": self.pace.runs, "seconds_left": None if left is None else round(left, 1),
        })  # fmt: skip


def _headline(record: RunRecord | None) -> dict[str, float | None]:
    """Map the name of a run's main metric to the metric's mean over the run's clusters. If the run has no record, the
    name is the main metric of a classification, and the mean is None.
    """
    metric = headlines_of([record] if record else [])[0]
    return {metric.name: record.summary.mean if record else None}


class SweepLines(SweepDisplay):
    """Print a line for each finished run, for output that is not a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def restarted(self, run: SweepRun, restart: Restart) -> None:
        self._print(f"{run.label}: {restart_line(restart)}")

    def ended(self, run: SweepRun, end: RunEnd) -> None:
        self._print(f"{self.pace}: {run.label}: {end}")

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


class SweepBars(SweepDisplay):
    """Draw the present runs and the progress of the sweep on a terminal, and update them in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._statuses: dict[str, pb.RunStatus] = {}
        self._failures: list[str] = []

    def open(self, pace: Pace) -> AbstractContextManager[Any]:
        self.pace = pace
        return Live(console=self._console, get_renderable=self._drawn, refresh_per_second=4, transient=True)

    def show(self, run: SweepRun, status: pb.RunStatus) -> None:
        self._statuses[run.label] = status

    def ended(self, run: SweepRun, end: RunEnd) -> None:
        self._statuses.pop(run.label, None)
        if end.failure:
            self._failures.append(f"{run.label}: {end}")

    def _drawn(self) -> RenderableType:
        bars = Table.grid(padding=(0, 2))
        bars.add_row(Text("runs", style="bold"), _bar(self.pace.done, self.pace.runs), Text(str(self.pace)))
        for label, status in list(self._statuses.items()):  # runs begin and end while a thread draws
            bars.add_row(Text(label), _bar(status.global_round, status.global_rounds), Text(progress_line(status)))
        return Group(bars, *(Text(line, style="yellow") for line in self._failures[-FAILURES_SHOWN:]))


def _bar(done: int, of: int) -> ProgressBar:
    return ProgressBar(total=max(of, 1), completed=done, width=24)


def make_display(console: Console, *, is_json: bool, is_quiet: bool) -> SweepDisplay:
    """Return the display that the user asked for, or by default the best display for this terminal."""
    if is_quiet:
        return SweepDisplay()
    if is_json:
        return SweepJson()
    return SweepBars(console) if can_draw_over(console) else SweepLines(console)
