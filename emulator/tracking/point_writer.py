"""Give the points of a run to one tracker, each point once, in a thread of its own."""

import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from emulator.tracking.tracker import Point, TrackedRun, Tracker

POINTS_A_CALL = 500
RETRY_S = 2.0  # between two tries to reach a tracker


class PointWriter:
    """Give points to a tracker. If the tracker raises an error, it gets the same points again later.

    The run's folder keeps the keys of written points, so that a run that continues does not write them again.
    """

    def __init__(self, tracker: Tracker, run: TrackedRun, tell: Callable[[str], None]) -> None:
        """Set `tell`, which shows a line to the user."""
        self._tracker, self._run, self._tell = tracker, run, tell
        self._notes = run.folder / "state" / "tracking" / f"{tracker.name}.jsonl"
        self._known = _noted(self._notes)
        self._pending: list[Point] = []
        self._changed = threading.Condition()
        self._ends_at: float | None = None  # None while the run is in progress
        self._is_completed = False
        self._is_away = False
        self._thread = threading.Thread(target=self._work, name=f"track-{tracker.name}", daemon=True)
        self._thread.start()

    def put(self, points: Iterable[Point]) -> None:
        """Take points that the tracker should get. Points that were put before are left out."""
        with self._changed:
            for point in points:
                if point.key not in self._known:
                    self._known.add(point.key)
                    self._pending.append(point)
            self._changed.notify_all()

    def close(self, deadline_s: float, *, is_completed: bool) -> None:
        """Wait until the tracker has all points, at most for this time. If it does not get all, tell the user."""
        with self._changed:
            self._ends_at, self._is_completed = time.monotonic() + deadline_s, is_completed
            self._changed.notify_all()
        self._thread.join(deadline_s)
        with self._changed:
            lost = len(self._pending)
        if lost:
            self._tell(f"{self._tracker.name} did not get {lost} points; they are in rounds.csv")
        elif self._thread.is_alive():
            self._tell(f"{self._tracker.name} has not confirmed the last points; they are in rounds.csv")

    def _work(self) -> None:
        if self._tried(lambda: self._tracker.begin(self._run)):
            while points := self._next():
                if not self._tried(lambda points=points: self._tracker.write(points)):  # type: ignore[misc]
                    return
                self._note(points)
            self._tried(lambda: self._tracker.end(is_completed=self._is_completed))

    def _next(self) -> list[Point]:
        """Wait for points, and return some of them. If the run is over, and no points are left, return none."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._ends_at is not None)
            return self._pending[:POINTS_A_CALL]

    def _tried(self, call: Callable[[], None]) -> bool:
        """Make a call until it succeeds. Return False if it has not succeeded by the deadline after the run's end."""
        while True:
            try:
                call()
            except Exception as error:  # whatever the tool's library raises must not disturb the run
                if not self._is_away:
                    said = " ".join(str(error).split())[:200]
                    self._tell(f"{self._tracker.name} is away, the run goes on: {type(error).__name__}: {said}")
                self._is_away = True
                with self._changed:
                    self._changed.wait_for(self._is_late, RETRY_S)
                    if self._is_late():
                        return False
            else:
                self._is_away = False
                return True

    def _is_late(self) -> bool:
        return self._ends_at is not None and time.monotonic() >= self._ends_at - RETRY_S

    def _note(self, points: list[Point]) -> None:
        self._notes.parent.mkdir(parents=True, exist_ok=True)
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(json.dumps([point.key for point in points]) + "\n")
        with self._changed:
            del self._pending[: len(points)]


def _noted(path: Path) -> set[tuple[str, str, int]]:
    """Return the keys of the points that the tracker has got. A line that was cut is left out."""
    found = set[tuple[str, str, int]]()
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            found.update((cluster, name, step) for cluster, name, step in json.loads(line))
        except ValueError:
            continue
    return found
