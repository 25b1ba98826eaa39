"""A sweep of a tiny experiment: its base, the records of its runs, and claims on them."""

from pathlib import Path
from typing import Any

from emulator.sweeps.claims import Claim
from emulator.sweeps.file import SweepRun
from tests.support.record_files import write_record

BASE: dict[str, Any] = {
    "name": "tiny",
    "partition": {"kind": "iid", "devices": 2, "examples_per_device": 20},
    "method": {"name": "random", "clusters": 1},
}


def write_run(folder: Path, run: SweepRun, **changes: Any) -> Path:
    """Write the record of a run of a sweep, with `changes` to its summary, and return its folder."""
    written = write_record(folder / run.path, seed=run.seed, **changes)
    (written / "experiment.yaml").write_text(run.experiment.to_yaml(), encoding="utf-8")
    return written


def claim_of(run: Path) -> Claim:
    """A claim on a run that nobody else has."""
    claim = Claim.of(run)
    assert claim is not None
    return claim
