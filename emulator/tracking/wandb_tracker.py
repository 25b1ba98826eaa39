"""Log the curves of a run to Weights & Biases, with its own library."""

import os
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from emulator.shipped.extras import needed
from emulator.tracking.tracker import Key, Point, TrackedRun
from emulator.tracking.wandb_files import logged

STEP = "lps_round"  # the curves' own step: rows of different clusters do not come in the order of their rounds


class WandbTracker:
    """Log to one run of Weights & Biases. Its id is the run id of Fedstrata, so a run that continues is the same run.

    `WANDB_MODE` decides between online and offline. Without it, and without a key in `WANDB_API_KEY`, the tracker is
    offline: it writes files into the folder `wandb` in the run's folder, and `wandb sync` can upload these files.
    """

    name = "wandb"

    def __init__(self, project: str = "") -> None:
        """Set the project. By default it has the name of the experiment. Raises MissingPackageError if wandb is not
        installed.
        """
        self._wandb = needed("wandb")
        self._project = project
        self._run: Any = None
        self._files = Path()

    def begin(self, run: TrackedRun) -> None:
        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._run = self._wandb.init(
            project=self._project or run.name, id=run.run_id, name=run.label, config=dict(run.settings),
            dir=str(run.folder), mode=mode, resume="allow" if mode == "online" else None,
            reinit="create_new",  # other runs of a sweep may be in progress in this process
            settings=self._wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True),
        )  # fmt: skip
        self._files = run.folder / "wandb"
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def write(self, points: Sequence[Point]) -> None:
        rows = dict[tuple[str, int], dict[str, float]]()
        for point in points:
            rows.setdefault((point.cluster, point.step), {})[f"{point.cluster}/{point.name}"] = point.value
        for (_, step), values in rows.items():
            self._run.log({STEP: step, **values})

    def present(self, points: Sequence[Point]) -> Set[Key]:
        """Return the keys of the points in offline files. An online run returns no keys, because the service does not
        say at once which points it has.
        """
        rows = [row for path in self._files.glob(f"offline-run-*-{self._run.id}/*.wandb") for row in logged(path)]
        written = {(name, row[STEP]) for row in rows for name in row}
        return {point.key for point in points if (f"{point.cluster}/{point.name}", point.step) in written}

    def end(self, *, is_completed: bool) -> None:
        self._run.finish(exit_code=0 if is_completed else 1)
