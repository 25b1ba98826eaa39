"""Runs that several test files look at: made once."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from programs import Program
from tiers import SMALL


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """What `fedstrata run` left: its folder, and the lines it printed."""

    folder: Path
    exit_code: int
    printed: list[dict[str, object]]


@pytest.fixture(scope="session")
def cli_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, FinishedRun]:
    """Runs of the small experiment by `fedstrata run`, by the number of device processes."""
    folder = tmp_path_factory.mktemp("cli_runs")
    (folder / "small.yaml").write_text(SMALL)
    started = {}
    with ExitStack() as programs:
        for processes in (1, 4):
            words = ("run", str(folder / "small.yaml"), "--out", str(folder / f"by-{processes}"), "--json")
            program = Program("emulator", *words, "--device-processes", str(processes), log=folder / f"{processes}.log")
            started[processes] = programs.enter_context(program)
        return {
            processes: FinishedRun(
                folder=folder / f"by-{processes}", printed=list(program.lines()), exit_code=program.end()
            )
            for processes, program in started.items()
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that the tests of a file share."""
    path = tmp_path_factory.mktemp("shared")
    yield path
    shutil.rmtree(path, ignore_errors=True)
