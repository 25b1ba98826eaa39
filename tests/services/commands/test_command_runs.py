"""A run by `fedstrata run` in several processes: it is the run in one process, and all count the same bytes."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from emulator.results.read_record import RunRecord
from tests.support.programs import LINKS, Counts, Program, events, total_bytes
from tests.support.records import summary_of
from tests.support.tiers import outcome, run_in_process, small

EXPERIMENT = small("training.optimiser.state=kept", "training.lps_optimiser={name: momentum}")
PROCESSES = {"gps", "lps-0", "lps-1", "devices-0-2", "devices-3-4"}


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """What `fedstrata run` left: its folder, and the lines it printed."""

    folder: Path
    exit_code: int
    printed: list[dict[str, Any]]


def run_by_command(folder: Path, *words: str) -> FinishedRun:
    """A run with two device processes, whose record is in `folder`."""
    file = folder.with_suffix(".yaml")
    file.write_text(EXPERIMENT.to_yaml())
    words = ("run", str(file), "--out", str(folder), "--json", "--device-processes", "2", *words)
    with Program("emulator", *words, log=folder.with_suffix(".log")) as program:
        return FinishedRun(folder=folder, printed=list(program.lines()), exit_code=program.end())


@pytest.fixture(scope="module")
def finished(folder: Path) -> FinishedRun:
    return run_by_command(folder / "by-command")


@pytest.fixture(scope="module")
def in_process(folder: Path) -> RunRecord:
    """The run whose devices are all of one process, the test's."""
    return run_in_process(EXPERIMENT, folder / "in-process")


def counted_by_all(run: FinishedRun) -> Counts:
    """What the processes of a run had counted when they stopped, added up."""
    counts: Counts = Counter()
    stopped = [event for log in (run.folder / "logs").iterdir() for event in events(log) if event["event"] == "stopped"]
    assert len(stopped) == len(list((run.folder / "logs").iterdir()))
    for event in stopped:
        for link, direction, kind, end, count in event["bytes"]:
            counts[link, direction, kind, end] += count
    return counts


def test_the_records_bytes_are_the_sum_of_what_the_parents_counted(finished: FinishedRun) -> None:
    counts = counted_by_all(finished)
    recorded = summary_of(finished.folder)["bytes"]
    assert recorded == {
        link: {way: total_bytes(counts, link, way, "parent") for way in ("up", "down")} for link in LINKS
    }
    assert all(recorded[link][way] > 0 for link in LINKS for way in ("up", "down"))


def test_both_ends_of_every_link_count_the_same(finished: FinishedRun) -> None:
    counts = counted_by_all(finished)
    at_children = {key[:3]: count for key, count in counts.items() if key[3] == "child" and count}
    at_parents = {key[:3]: count for key, count in counts.items() if key[3] == "parent" and count}
    assert at_children == at_parents


def test_the_last_status_and_the_record_say_the_same_bytes(finished: FinishedRun) -> None:
    *_, last, summary = finished.printed
    assert last["event"] == "status"
    assert summary["event"] == "summary"
    assert last["bytes"] == summary["summary"]["bytes"]


def test_the_record_says_which_command_and_which_versions_made_it(finished: FinishedRun) -> None:
    made = summary_of(finished.folder)["made_by"]
    (command,) = made["commands"]
    assert command.startswith("fedstrata run ")
    assert made["started"] <= made["ended"]
    counts = {tier: [each["count"] for each in found] for tier, found in made["software"].items()}
    assert counts == {"gps": [1], "lps": [2], "device": [5]}
    versions = {tier: found[0]["versions"] for tier, found in made["software"].items()}
    assert versions["device"]["torch"] == torch.__version__
    assert "torch" not in versions["gps"]
    assert {found["numpy"] for found in versions.values()} == {np.__version__}


def test_devices_of_two_processes_and_of_one_give_the_same_clusters_relevance_and_models(
    finished: FinishedRun, in_process: RunRecord
) -> None:
    assert finished.exit_code == 0
    assert {log.stem for log in (finished.folder / "logs").iterdir()} == PROCESSES
    assert outcome(finished.folder) == outcome(in_process.folder)
    for model in sorted((in_process.folder / "models").iterdir()):
        assert model.read_bytes() == (finished.folder / "models" / model.name).read_bytes()


def test_what_the_processes_of_a_run_keep_is_their_users_alone(finished: FinishedRun) -> None:
    state = finished.folder / "state"
    kept = [*state.rglob("*")]
    assert {path.name for path in kept} >= {"journal.sqlite", ".lock", "final.pb", "born", "summary.json"}
    assert [path for path in (state, *kept) if path.stat().st_mode & 0o077] == []


@pytest.mark.runs
def test_fedstrata_run_speaks_tls_and_is_the_same_in_the_clear(finished: FinishedRun, tmp_path: Path) -> None:
    clear = run_by_command(tmp_path / "clear", "--no-tls", "--device-processes", "1")
    assert outcome(finished.folder) == outcome(clear.folder)
    issued = {path.name for path in (finished.folder / "state" / "tls").iterdir() if path.is_dir()}
    assert issued == {"authority", "operator", *PROCESSES}
    assert not (clear.folder / "state" / "tls").exists()
