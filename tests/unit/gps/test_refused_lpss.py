"""Which LPSs a GPS has refused: known after a restart, and forgotten when a failed run is continued."""

import asyncio
from pathlib import Path

import pytest

from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Plan
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.trust.security import OPEN
from gps.journal.answers import BEFORE
from gps.kubernetes.backend import Backend
from gps.run import Run
from tests.support.gps_parts import IDS, TEXT, GpsParts

CHANGES = ("data={name: digits}", "model={name: mlp, hidden: [4]}", "deadlines.gps.deadline_s=30")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The state of a run with two clusters."""
    gps = GpsParts(tmp_path, *CHANGES)
    gps.enrol(*range(len(IDS)))
    gps.places.make(BEFORE, Plan(clusters=((0, 2), (1, 3, 4)), rule="2 as given"))
    gps.journal.close()
    return tmp_path


def started(folder: Path) -> Run:
    return Run(
        parse_experiment(TEXT, overrides=CHANGES), state=folder, metrics=ProcessMetrics("gps"), backend=Backend(),
        log=EventLog("test"), security=OPEN,
    )  # fmt: skip


def refuse(run: Run, home_id: str) -> None:
    assert run.rounds.server.refused.refuse(0, home_id, "nonsense")


async def stopped(run: Run) -> None:
    await asyncio.sleep(0)  # the calls to the backend end
    run.journal.close()


async def test_after_a_restart_the_lps_that_sent_nonsense_is_refused_and_not_the_one_that_had_the_cluster_before(
    folder: Path,
) -> None:
    run = started(folder)
    run.serving.hand_over("lps-1", "lps-0", 0)
    refuse(run, "lps-1")
    await stopped(run)
    run = started(folder)
    assert [run.serving.presence.is_refused(name) for name in ("lps-0", "lps-1")] == [True, False]
    assert list(run.rounds.server.refused) == ["lps-1"]
    run.serving.hand_over("lps-1", "lps-1", 0)
    await stopped(run)
    run = started(folder)
    assert [run.serving.presence.is_refused(name) for name in ("lps-0", "lps-1")] == [True, False]
    assert list(run.rounds.server.refused) == []
    await stopped(run)


async def test_a_continued_run_tries_all_lpss_again_and_remembers_whom_it_refuses_then(folder: Path) -> None:
    run = started(folder)
    refuse(run, "lps-0")
    run.fail("no LPS is left")
    await stopped(run)
    run = started(folder)
    assert not run.serving.presence.is_refused("lps-0")
    refuse(run, "lps-1")
    await stopped(run)
    run = started(folder)
    assert [run.serving.presence.is_refused(name) for name in ("lps-0", "lps-1")] == [False, True]
    expected = [(name, "global round 1", "refused: nonsense") for name in ("lps-0", "lps-1")]
    assert run.journal.exclusions() == expected  # the record names both
    await stopped(run)
