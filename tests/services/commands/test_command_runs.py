"""Runs by `fedstrata run`: the same by one device process and three, with TLS and without; all count the same bytes.

The tests share two runs, which each worker of pytest makes for a file. So they stand in one file.
"""

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.programs import LINKS, Counts, FinishedRun, Program, events, total_bytes
from tests.support.tiers import SMALL, outcome


@pytest.fixture(scope="module")
def cli_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, FinishedRun]:
    """Runs of the small experiment by `fedstrata run`, by the number of device processes."""
    folder = tmp_path_factory.mktemp("cli_runs")
    (folder / "small.yaml").write_text(SMALL)
    started = {}
    with ExitStack() as programs:
        for processes in (1, 3):
            words = ("run", str(folder / "small.yaml"), "--out", str(folder / f"by-{processes}"), "--json")
            program = Program("emulator", *words, "--device-processes", str(processes), log=folder / f"{processes}.log")
            started[processes] = programs.enter_context(program)
        return {
            processes: FinishedRun(
                folder=folder / f"by-{processes}", printed=list(program.lines()), exit_code=program.end()
            )
            for processes, program in started.items()
        }


@pytest.fixture(scope="module", params=[1, 3], ids=["one device process", "three device processes"])
def finished(request: pytest.FixtureRequest, cli_runs: dict[int, FinishedRun]) -> FinishedRun:
    return cli_runs[request.param]


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
    recorded = json.loads((finished.folder / "summary.json").read_text())["bytes"]
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


def test_one_and_three_device_processes_give_the_same_clusters_relevance_and_models(
    cli_runs: dict[int, FinishedRun],
) -> None:
    assert [run.exit_code for run in cli_runs.values()] == [0, 0]
    assert len(list((cli_runs[1].folder / "logs").glob("devices-*"))) == 1
    assert len(list((cli_runs[3].folder / "logs").glob("devices-*"))) == 3
    assert outcome(cli_runs[1].folder) == outcome(cli_runs[3].folder)
    for model in sorted((cli_runs[1].folder / "models").iterdir()):
        assert model.read_bytes() == (cli_runs[3].folder / "models" / model.name).read_bytes()


@pytest.mark.runs
def test_fedstrata_run_speaks_tls_and_is_the_same_in_the_clear(
    cli_runs: dict[int, FinishedRun], tmp_path: Path
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    words = ("run", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "clear"), "--no-tls", "--quiet")
    with Program("emulator", *words, "--device-processes", "1", log=tmp_path / "log") as program:
        assert program.end() == 0, program.log_path.read_text()
    assert outcome(cli_runs[1].folder) == outcome(tmp_path / "clear")
    issued = {path.name for path in (cli_runs[1].folder / "state" / "tls").iterdir() if path.is_dir()}
    assert issued == {"authority", "gps", "lps-0", "lps-1", "devices-0-4", "operator"}
    assert not (tmp_path / "clear" / "state" / "tls").exists()
