"""Pass the points of a run to one tracker, in a separate thread."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from emulator.tracking.tracker import Key, Point, TrackedRun, Tracker

POINTS_A_CALL = 500
RETRY_S = 2.0  # between two tries to reach a tracker


class NotesError(Exception):
    """Notes about written points cannot be saved in the run's folder."""


class PointWriter:
    """Pass points to a tracker. If the tracker raises an error, later pass the points that it lacks once more.

    The key of each point is written to a file in the run's folder twice: before the tracker gets the point, and when
    the tracker has the point. A continued run passes only points that the tracker may lack. If a key was written only
    once, the method `present` of the tracker decides.
    """

    def __init__(self, tracker: Tracker, run: TrackedRun, tell: Callable[[str], None]) -> None:
        """Set `tell`, which shows a line to the user."""
        self._tracker, self._run, self._tell = tracker, run, tell
        self._notes = run.folder / "state" / "tracking" / f"{tracker.name}.jsonl"
        noted = _noted(self._notes)
        self._known = {key for key, is_written in noted.items() if is_written}
        self._unsure = noted.keys() - self._known  # the tracker may have them
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
        """Wait until the tracker has all points, but at most `deadline_s` seconds. If points are then missing, tell the
        user.
        """
        with self._changed:
            self._ends_at, self._is_completed = time.monotonic() + deadline_s, is_completed
            self._changed.notify_all()
        self._thread.join(deadline_s)
        with self._changed:
            lost = len(self._pending)
        if lost:
            self._tell(f"{self._tracker.name} has not confirmed {lost} points; they are in rounds.csv")
        elif self._thread.is_alive():
            self._tell(f"{self._tracker.name} has not confirmed the last points; they are in rounds.csv")

    def _work(self) -> None:
        if self._tried(lambda: self._tracker.begin(self._run)):
            while points := self._next():
                if not self._tried(lambda points=points: self._write(points)):  # type: ignore[misc]
                    return
                if not self._tried(lambda points=points: self._note(points, is_written=True)):  # type: ignore[misc]
                    return
                with self._changed:
                    del self._pending[: len(points)]
            self._tried(lambda: self._tracker.end(is_completed=self._is_completed))

    def _next(self) -> list[Point]:
        """Wait for points, and return some of them. If the run is over, and no points are left, return an empty
        list.
        """
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
                    self._tell(f"{self._tracker.name} {_problem(error)}")
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

    def _write(self, points: list[Point]) -> None:
        keys = {point.key for point in points}
        found = set[Key]() if self._unsure.isdisjoint(keys) else self._tracker.present(points)
        if lacking := [point for point in points if point.key not in found]:
            if new := [point for point in lacking if point.key not in self._unsure]:
                self._note(new, is_written=False)
                self._unsure |= keys
            self._tracker.write(lacking)
        self._unsure -= keys

    def _note(self, points: list[Point], *, is_written: bool) -> None:
        """Add a line about points to the file of notes. The line begins with a line break, so that it stays separate
        from an earlier line that was cut.
        """
        line = json.dumps({"is_written": is_written, "points": [point.key for point in points]})
        try:
            self._notes.parent.mkdir(parents=True, exist_ok=True)
            with self._notes.open("a", encoding="utf-8") as file:
                file.write(f"\n{line}\n")
        except OSError as error:
            raise NotesError(f"the notes in {self._notes.parent} cannot be written: {error.strerror}") from error


def _problem(error: Exception) -> str:
    """Return in one line why a tracker gets no points."""
    if isinstance(error, NotesError):
        return f"waits, the run goes on: {error}"
    return f"is away, the run goes on: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _noted(path: Path) -> Mapping[Key, bool]:
    """Return the keys of noted points, and whether the tracker has them. A line that was cut is left out."""
    found = dict[Key, bool]()
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            noted = json.loads(line)
        except ValueError:
            continue
        found.update(((cluster, name, step), noted["is_written"]) for cluster, name, step in noted["points"])
    return found
