"""Whole runs whose GPS is killed, or whose tracker is away: each point once, and the models of an untracked run."""

import os
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedstrata
from emulator.tracking.point_writer import POINTS_A_CALL
from emulator.tracking.wandb_files import logged
from tests.support import killing
from tests.support.mlflow_server import serving
from tests.support.ports import kept_address
from tests.support.programs import Program, events, processes_of
from tests.support.records import summary_of
from tests.support.tracked import DOCUMENT, KILLED, Found, check, expected

pytestmark = [pytest.mark.kills, pytest.mark.timeout(500)]
LONGER = {**DOCUMENT, "training": {**DOCUMENT["training"], "global_rounds": 40}}
POINTS = 2 * 80 * 3 + 2 * 40 * 2 + 1  # of two clusters: three counts a round, two measurements a global round
AWAY = "mlflow is away, the run goes on: "
UNCONFIRMED = re.compile(r"mlflow has not confirmed (\d+) points; they are in rounds.csv")


@contextmanager
def tracked(track: str, folder: Path, *faults: dict[str, Any], also: Sequence[str] = ()) -> Iterator[Program]:
    """A run of LONGER that a tracker shows. After the block the run ends with exit code 0."""
    file = folder / "tracked.yaml"
    file.write_text(yaml.safe_dump({**LONGER, "faults": list(faults)}))
    words = ("run", str(file), "--track", track, "--json", "--out", str(folder / "run"), *also)
    with Program("emulator", *words, log=folder / "log", environment={"WANDB_MODE": "offline"}) as program:
        yield program
        for _ in program.lines():
            pass
        assert program.end() == 0, (folder / "log").read_text()


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, str]:
    """The SHA-256 of the models of a run without trackers."""
    fedstrata.run(LONGER, out=folder / "plain", quiet=True)
    return dict(summary_of(folder / "plain")["model_sha256"])


def check_models(folder: Path, plain: dict[str, str]) -> None:
    assert summary_of(folder / "run")["model_sha256"] == plain


def in_mlflow(address: str) -> list[Found]:
    """The points of the only run that a server of MLflow has."""
    client, run = run_in_mlflow(address)
    assert run is not None
    return [
        ((*name.split("/"), each.step), each.value)  # type: ignore[misc]
        for name in run.data.metrics
        for each in client.get_metric_history(run.info.run_id, name)
    ]


def run_in_mlflow(address: str) -> tuple[Any, Any]:
    """A client of the server, and the only run that the server has. If it has no run yet, None."""
    from mlflow import MlflowClient

    client = MlflowClient(f"http://{address}")
    experiment = client.get_experiment_by_name("tracked")
    runs = client.search_runs([experiment.experiment_id]) if experiment else []
    assert len(runs) <= 1
    return client, (runs[0] if runs else None)


def wait_for_points(address: str, program: Program) -> None:
    """Wait until MLflow has a point of a run that is still in progress."""
    run = None
    while run is None or not run.data.metrics or run.info.status != "RUNNING":
        assert program.process.poll() is None, program.log_path.read_text()
        _, run = run_in_mlflow(address)


def check_gps_was_killed(folder: Path) -> None:
    serving = [event for event in events(folder / "run" / "logs" / "gps.log") if event["event"] == "serving"]
    assert len(serving) == 2


def test_a_server_of_mlflow_gets_each_point_once_although_the_gps_is_killed(
    tmp_path: Path, plain: dict[str, str]
) -> None:
    with kept_address() as address, serving(address, tmp_path):
        with tracked(f"mlflow:http://{address}", tmp_path, KILLED) as program:
            wait_for_points(address, program)
        found = in_mlflow(address)
    assert len(found) == POINTS
    check(found, list(expected(fedstrata.load(tmp_path / "run"))))
    assert program.errors() == []
    check_gps_was_killed(tmp_path)
    check_models(tmp_path, plain)


def test_wandb_offline_gets_each_point_once_although_the_gps_is_killed(tmp_path: Path, plain: dict[str, str]) -> None:
    pytest.importorskip("wandb")
    with tracked("wandb", tmp_path, KILLED) as program:
        pass
    rows = [row for path in (tmp_path / "run").glob("wandb/offline-*/*.wandb") for row in logged(path)]
    found = [
        ((*key.split("/"), row["lps_round"]), value) for row in rows for key, value in row.items() if key != "lps_round"
    ]
    assert len(found) == POINTS
    check(found, list(expected(fedstrata.load(tmp_path / "run"))))
    assert program.errors() == []
    check_gps_was_killed(tmp_path)
    check_models(tmp_path, plain)


@pytest.mark.parametrize("listens", [False, True], ids=["refuses", "hangs"])
def test_a_server_that_never_answers_changes_no_model_and_the_lost_points_are_counted(
    tmp_path: Path, plain: dict[str, str], listens: bool
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen(100)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with tracked(f"mlflow:http://{address}", tmp_path) as program:
            pass
    away, lost = program.errors()
    assert away.startswith(AWAY)
    assert lost == f"mlflow has not confirmed {POINTS} points; they are in rounds.csv"
    check_models(tmp_path, plain)


@contextmanager
def paused(program: Program) -> Iterator[None]:
    """Stop the devices of a run in progress: no round ends meanwhile."""
    devices = processes_of(program.mark, "device")
    try:
        for pid in devices:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in devices:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def read_until_away(lines: Iterator[dict[str, Any]], program: Program) -> None:
    """Read what a run prints until its tracker is away."""
    assert any(any(said.startswith(AWAY) for said in program.errors()) for _ in lines), "the run ended before"


def test_a_server_that_dies_and_comes_back_during_a_run_has_each_point_once(tmp_path: Path) -> None:
    slow = ("--set", "training.local_steps=200")  # so dozens of rounds take much longer than to see a refusal
    with kept_address() as address, ExitStack() as first, ExitStack() as second:
        first.enter_context(serving(address, tmp_path))
        with tracked(f"mlflow:http://{address}", tmp_path, also=slow) as program:
            lines = program.lines()
            next(line for line in lines if line.get("global_round") == 3)
            with paused(program):
                wait_for_points(address, program)
                first.close()
            read_until_away(lines, program)
            with paused(program):
                second.enter_context(serving(address, tmp_path))
        found = in_mlflow(address)
    check(found, list(expected(fedstrata.load(tmp_path / "run"))))
    aways = program.errors()
    assert aways
    assert all(away.startswith(AWAY) for away in aways)


def test_points_that_a_dead_server_did_not_get_are_counted_and_the_others_are_there_once(
    tmp_path: Path, plain: dict[str, str]
) -> None:
    with kept_address() as address:
        with tracked(f"mlflow:http://{address}", tmp_path) as program, serving(address, tmp_path):
            wait_for_points(address, program)
        with serving(address, tmp_path):
            found = in_mlflow(address)
    *aways, lost = program.errors()  # it may also be away before the server has started
    assert aways
    assert all(away.startswith(AWAY) for away in aways)
    assert (match := UNCONFIRMED.fullmatch(lost))
    assert 0 <= len(found) - (POINTS - int(match[1])) <= POINTS_A_CALL  # it may have died before it confirmed
    wanted = dict(expected(fedstrata.load(tmp_path / "run")))
    check(found, [(key, wanted[key]) for key, _ in found])
    check_models(tmp_path, plain)


@pytest.mark.parametrize("count", [killing.BEFORE // 2, killing.BEFORE], ids=["half", "all"])
@pytest.mark.parametrize("word", ["tensorboard", "mlflow", "wandb"])
def test_a_command_that_was_killed_in_a_write_repeats_no_point(word: str, count: int, tmp_path: Path) -> None:
    pytest.importorskip(word)
    killed, again = (killing.track(word, tmp_path, killed_after=number) for number in (count, 0))
    assert (killed, again) == (-signal.SIGKILL, 0)
    assert sorted(killing.found(word, tmp_path)) == [("accuracy", step) for step in killing.STEPS]
