"""A command with a tracker that is killed in a write, or after it and before the command can note it."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from emulator.tracking.mlflow_tracker import ALLOWED
from emulator.tracking.point_writer import PointWriter
from emulator.tracking.registry import TRACKERS
from emulator.tracking.tensorboard_tracker import TensorBoardTracker
from emulator.tracking.tracker import Point, TrackedRun, Tracker
from emulator.tracking.wandb_files import logged
from tests.support.programs import Program, of_mark

STEPS, BEFORE = range(1, 41), 30  # BEFORE: how many of them the command that is killed has


class Killing:
    """A tracker that kills its own process when the tool has so many points of a write."""

    def __init__(self, tracker: Tracker, count: int) -> None:
        self._tracker, self._count, self.name = tracker, count, tracker.name
        self.begin, self.present, self.end = tracker.begin, tracker.present, tracker.end

    def write(self, points: Sequence[Point]) -> None:
        self._tracker.write(points[: self._count])
        os.kill(os.getpid(), signal.SIGKILL)


def track(word: str, folder: Path, *, killed_after: int = 0) -> int:
    """Track a run in a process of its own, and return its exit code when all processes that it started have ended.

    With `killed_after` the process kills itself when the tool has so many points.
    """
    words = (word, str(folder), str(killed_after))
    with Program("tests.support.killing", *words, log=folder / "log", environment={"WANDB_MODE": "offline"}) as program:
        code, deadline = program.end(), time.monotonic() + 60
        while of_mark(program.mark):  # wandb writes its files in a process that outlives the command
            assert time.monotonic() < deadline
            time.sleep(0.02)
    return code


def found(word: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the name and the step of each point that the tool has."""
    if word == "tensorboard":
        yield from TensorBoardTracker().in_files(folder / "tensorboard" / "lps-0")
    elif word == "wandb":
        rows = [row for path in folder.glob("wandb/offline-*/*.wandb") for row in logged(path)]
        yield from (("accuracy", row["lps_round"]) for row in rows)
    else:
        from mlflow import MlflowClient

        os.environ.setdefault(ALLOWED, "true")
        client = MlflowClient(tracking_uri=str(folder / "mlruns"))
        (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
        yield from (("accuracy", each.step) for each in client.get_metric_history(run.info.run_id, "lps-0/accuracy"))


def main(word: str, folder: Path, killed_after: int) -> None:
    tracker = TRACKERS[word](str(folder / "mlruns") if word == "mlflow" else "")
    run = TrackedRun(
        run_id="digits-0123", name="digits", label="digits-0123", folder=folder, settings={},
        lps_rounds_per_global_round=1,
    )  # fmt: skip
    writer = PointWriter(Killing(tracker, killed_after) if killed_after else tracker, run, print)
    writer.put(
        Point(cluster="lps-0", name="accuracy", step=step, value=0.5, time_ms=1)
        for step in STEPS[: BEFORE if killed_after else None]
    )
    writer.close(100, is_completed=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
