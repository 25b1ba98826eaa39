"""Ctrl-C at every phase of `fedstrata run`: exit code 130, no process left, nothing lost."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.programs import Program, of_mark
from tests.support.tiers import SMALL

PHASES = ("enrolment", "relevance", "grouping", "training", "evaluation", "completed")

pytestmark = [pytest.mark.runs, pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")]


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """What is left of a run after Ctrl-C."""

    folder: Path
    reached: str  # the phase that it had told last
    processes_before: int
    exit_code: int
    processes_after: list[str]
    errors: list[str]


def interrupt(folder: Path, phase: str) -> Interrupted:
    """Run the small experiment and press Ctrl-C as soon as it tells of a phase, or of a later one."""
    words = ("run", str(folder / "small.yaml"), "--out", str(folder / phase), "--json", "--device-processes", "1")
    words += ("--set", "method.clusters=1")  # one LPS less to start
    with Program("emulator", *words, log=folder / f"{phase}.log") as run:
        reached = next(said["phase"] for said in run.lines() if PHASES.index(said["phase"]) >= PHASES.index(phase))
        processes_before = len(of_mark(run.mark))
        run.interrupt()
        return Interrupted(
            folder=folder / phase,
            reached=reached,
            processes_before=processes_before,
            exit_code=run.end(),
            processes_after=of_mark(run.mark),
            errors=run.errors(),
        )


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Interrupted]:
    """The runs, three at a time, by the phase in which each was interrupted."""
    (folder / "small.yaml").write_text(SMALL)
    with ThreadPoolExecutor(3) as side_by_side:
        return dict(zip(PHASES, side_by_side.map(lambda phase: interrupt(folder, phase), PHASES), strict=True))


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_ends_a_run_at_once_and_keeps_what_there_is(runs: dict[str, Interrupted], phase: str) -> None:
    run = runs[phase]
    # a run that has told of its end stops its processes and writes its report: then the command may be alone
    assert run.processes_before >= (1 if run.reached == "completed" else 2)
    assert run.exit_code == 130
    assert run.errors == ["interrupted"]
    assert run.processes_after == []
    assert (run.folder / "experiment.yaml").exists()
    assert (run.folder / "logs" / "gps.log").read_text()
    (journal,) = (run.folder / "state" / "gps").rglob("journal.sqlite")
    assert journal.stat().st_size
    if PHASES.index(run.reached) >= PHASES.index("evaluation"):
        assert list((run.folder / "state" / "gps").rglob("shared-*.safetensors"))
