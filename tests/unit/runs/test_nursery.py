"""Nurseries, tried on real processes: tiny packages written for each test."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import dedent, indent

import pytest

from fedstrata.errors import FedstrataError
from fedstrata.process.child_processes import OwnedProcess, ProcessSpec, Restart, Supervisor
from fedstrata.process.nursery import Nurseries

DEADLINE_S = 60.0  # of a wait that ends by an event; only a failing test sees it
WAITS = """
    import json, os, pathlib, sys
    said = {"event": "listening", "parent": str(os.getppid()), "session": str(os.getsid(0) == os.getpid())}
    said |= {"words": "|".join(sys.argv[1:-2]), "shown": pathlib.Path("/proc/self/cmdline").read_text().rstrip("\\0")}
    print(json.dumps(said), flush=True)
    sys.stdin.read()
"""
TOLD = {name: f"--{name}" for name in ("parent", "session", "words", "shown")}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no nurseries")


@pytest.fixture
async def nurseries(folder: Path) -> AsyncIterator[Nurseries]:
    async with Nurseries(("program",)) as made:
        yield made


@pytest.fixture
async def supervisor(nurseries: Nurseries) -> AsyncIterator[Supervisor]:
    made = Supervisor(Path("logs"), lambda restart: None, nurseries)
    yield made
    await made.stop()


def write_program(loads: str, runs: str) -> None:
    """A program: what it does when its modules are imported, and when it runs."""
    package = Path("program")
    package.mkdir()
    (package / "__init__.py").write_text("with open('imports', 'a') as file: file.write('x')\n" + dedent(loads))
    (package / "__main__.py").write_text("if __name__ == '__main__':\n" + indent(dedent(runs), "    "))


def spec(name: str, *words: str, **more: object) -> ProcessSpec:
    return ProcessSpec(name=name, command=("program", *words), endpoints=TOLD, **more)  # type: ignore[arg-type]


async def told(process: OwnedProcess) -> dict[str, str]:
    return dict(await asyncio.wait_for(process.addresses(), DEADLINE_S))


async def test_processes_of_a_nursery_import_their_program_once_and_show_their_command(supervisor: Supervisor) -> None:
    write_program("", WAITS)
    first, second = [await told(supervisor.start(spec(name, "--as", name))) for name in ("a", "b")]
    assert Path("imports").read_text() == "x"
    assert first["parent"] == second["parent"] != str(os.getpid())
    assert (first["words"][:6], second["words"][:6]) == ("--as|a", "--as|b")
    assert f"{sys.executable}\0-P\0-m\0program\0--as\0a\0" in first["shown"]
    assert first["session"] == "True"


@pytest.mark.parametrize(
    ("loads", "environment"),
    [
        ("", {"FEDSTRATA_DIE_AT": "[]"}),
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n", {}),
        ("import sys\nif 'program' in sys.argv: raise ImportError\n", {}),
    ],
    ids=["variables of its own", "a second thread", "a program that fails in the nursery"],
)
async def test_what_no_nursery_may_start_gets_an_interpreter(
    supervisor: Supervisor, loads: str, environment: dict[str, str]
) -> None:
    write_program(loads, WAITS)
    process = supervisor.start(spec("alone", environment=environment))
    assert (await told(process))["parent"] == str(os.getpid())


@pytest.mark.parametrize(
    ("end", "said"), [("raise SystemExit(3)", "exit code 3"), ("raise OSError('no disk')", "OSError: no disk")]
)
async def test_an_exit_code_of_a_fork_is_the_program_s(nurseries: Nurseries, end: str, said: str) -> None:
    write_program("", end)
    owned = OwnedProcess(spec("fails"), Path("logs"), lambda restart: None, nurseries)
    with pytest.raises(FedstrataError, match=said):
        await asyncio.wait_for(owned.keep_alive(), DEADLINE_S)


TWO_LIVES = """
    import json, os, pathlib, sys
    with open("parents", "a") as file: file.write(f"{os.getppid()} ")
    if len(pathlib.Path("parents").read_text().split()) == 2:
        print(json.dumps({"event": "finished"}), flush=True)
        sys.exit()
    print(json.dumps({"event": "listening"}), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("is_nursery_killed", [False, True])
async def test_a_killed_process_comes_back_as_a_fork_or_without_its_nursery_in_an_interpreter(
    nurseries: Nurseries, is_nursery_killed: bool
) -> None:
    write_program("", TWO_LIVES)
    restarts: list[Restart] = []
    owned = OwnedProcess(spec("twice", may_finish=True), Path("logs"), restarts.append, nurseries)
    job = asyncio.create_task(owned.keep_alive())
    await told(owned)
    nursery, pid = int(Path("parents").read_text()), owned.pid
    assert pid is not None
    os.kill(nursery if is_nursery_killed else pid, signal.SIGKILL)
    await asyncio.wait_for(job, DEADLINE_S)
    assert restarts == [Restart(process="twice", cause="SIGKILL", count=1)]
    first, second = map(int, Path("parents").read_text().split())
    assert (first, second) == (nursery, os.getpid() if is_nursery_killed else nursery)


async def test_a_run_that_stops_does_not_wait_for_a_nursery(supervisor: Supervisor) -> None:
    write_program("import signal, sys\nif 'program' in sys.argv: signal.pause()\n", WAITS)
    process = supervisor.start(spec("early"))
    await asyncio.sleep(0)
    await asyncio.wait_for(supervisor.stop(), DEADLINE_S)
    assert process.pid is None
