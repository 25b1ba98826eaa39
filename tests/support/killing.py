"""A command with a tracker that is killed after a write, before it can note it."""

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

STEPS, HALF = range(1, 41), 20


class Killing:
    """A tracker that kills its own process when the tool has the points."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker, self.name = tracker, tracker.name
        self.begin, self.present, self.end = tracker.begin, tracker.present, tracker.end

    def write(self, points: Sequence[Point]) -> None:
        self._tracker.write(points)
        os.kill(os.getpid(), signal.SIGKILL)


def track(word: str, folder: Path, *, kills: bool) -> int:
    """Track a run in a process of its own, and return its exit code when all processes that it started have ended."""
    words = (word, str(folder), "kills" if kills else "")
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


def main(word: str, folder: Path, kills: str) -> None:
    tracker = TRACKERS[word](str(folder / "mlruns") if word == "mlflow" else "")
    run = TrackedRun(
        run_id="digits-0123", name="digits", label="digits-0123", folder=folder, settings={},
        lps_rounds_per_global_round=1,
    )  # fmt: skip
    writer = PointWriter(Killing(tracker) if kills else tracker, run, print)
    writer.put(
        Point(cluster="lps-0", name="accuracy", step=step, value=0.5, time_ms=1)
        for step in STEPS[: 30 if kills else 40]
    )
    writer.close(100, is_completed=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
