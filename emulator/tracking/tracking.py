"""Track one run: read its rows from the live page, and pass their points to each tracker."""

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from emulator.results.read_record import load_record
from emulator.tracking.page_rows import rows_of_page
from emulator.tracking.point_writer import PointWriter
from emulator.tracking.tracker import Point, TrackedRun, Tracker, points_of
from fedstrata.errors import DataError
from fedstrata.process.waiting import wall_time

END_S = 20.0  # how long the end of a run waits for a slow tracker
LEFT_BY_TRACKING = ("state", "tensorboard", "wandb")  # what trackers write into the folder of a run


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Tracking:
    """Pass a run's points to trackers. This happens in threads of the command that the user has started. Without
    trackers, do nothing.

    The processes of the run are not involved, so a tracker that does not answer never slows the run.
    """

    def __init__(
        self, trackers: Sequence[Tracker] = (), *, label: str = "", tell: Callable[[str], None] = _print
    ) -> None:
        """Set the run's label in the tools, by default its run id, and `tell`, which shows a line to the user."""
        self._trackers, self._label, self._tell = trackers, label, tell
        self._writers: list[PointWriter] = []
        self._stop = threading.Event()

    def __bool__(self) -> bool:
        """Return whether there are trackers."""
        return bool(self._trackers)

    def labelled(self, label: str) -> "Tracking":
        """Return a `Tracking` with the same trackers for another run, which has this label in the tools."""
        return Tracking(self._trackers, label=label, tell=self._tell)

    def watch(self, run: TrackedRun, http_address: str) -> None:
        """Begin to track a run. `http_address` is the address of its live page."""
        if not self._trackers:
            return
        run = replace(run, label=self._label or run.label)
        self._each = run.lps_rounds_per_global_round
        self._writers = [PointWriter(tracker, run, self._tell) for tracker in self._trackers]
        threading.Thread(target=self._read, args=(http_address,), name="track", daemon=True).start()

    def _read(self, http_address: str) -> None:
        for headline, row in rows_of_page(http_address, self._stop):
            self._put(list(points_of(row, headline, self._each, _now_ms())))

    def _put(self, points: list[Point]) -> None:
        for writer in self._writers:
            writer.put(points)

    def end(self, folder: Path) -> None:
        """Read the run's record in `folder`, pass each tracker the points that it lacks, and close the trackers."""
        if not self._writers:
            return
        self._stop.set()
        is_completed = False
        try:
            record = load_record(folder)
        except DataError:
            pass  # an interrupted run has no record; it can be continued
        else:
            is_completed, now_ms = record.summary.status == "completed", _now_ms()
            for row in record.rounds:
                self._put(list(points_of(row, record.headline.name, self._each, now_ms)))
            result = {metric.name: record.summary.mean_of(metric) for metric in record.summary.metrics}
            last = max((row.lps_round for row in record.rounds), default=0)
            self._put([
                Point(cluster="run", name=name, step=last, value=value, time_ms=now_ms)
                for name, value in result.items() if value is not None
            ])  # fmt: skip
        for writer in self._writers:
            writer.close(END_S, is_completed=is_completed)


def _now_ms() -> int:
    return int(1000 * wall_time())
