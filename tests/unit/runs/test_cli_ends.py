"""How the `fedstrata` command ends when a signal comes at an odd moment: after its work, in the middle of an import."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.programs import REPOSITORY, start_heeding

# A command whose work is done, in an interpreter that is about to end.
OVER = """
import atexit, threading
from emulator.commands import main as cli

def lingers():
    print("over", flush=True)
    threading.Event().wait()

def app(*_, **__):
    atexit.register(lingers)
    print("said")

cli.app = app
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_when_all_is_done_is_not_worth_a_word(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as it:
        assert it.stdout is not None
        assert [it.stdout.readline() for _ in range(2)] == ["said\n", "over\n"]
        while it.poll() is None:  # one that comes just before the interpreter begins to wait is seen at the next
            it.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                it.wait(timeout=1)
        assert it.communicate(timeout=60) == ("", "")
    assert it.returncode == 0


# A command whose interpreter receives Ctrl-C while it removes its last objects.
LAST = """
import os, signal, sys
from emulator.commands import main as cli

class Last:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)

def app(*_, **__):
    sys.last = Last()

cli.app = app
cli.main()
"""


def test_ctrl_c_at_the_end_of_the_interpreter_does_not_replace_the_exit_code() -> None:
    ended = subprocess.run([sys.executable, "-c", LAST], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    ended = subprocess.run(
        [sys.executable, "-m", "emulator"], cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, b"", b"")


# A command that runs until a signal ends it.
ENDLESS = """
import asyncio
from emulator.commands import main as cli
from emulator.console.interrupts import run_interruptibly

async def endless():
    print("runs", flush=True)
    await asyncio.Event().wait()

cli.app = lambda *_, **__: run_interruptibly(endless())
cli.main()
"""


@pytest.mark.parametrize(("start", "code"), [((), 130), (("nohup",), None)])
def test_a_command_ends_with_its_terminal_unless_nohup_has_started_it(start: tuple[str, ...], code: int | None) -> None:
    command = [*start, sys.executable, "-c", ENDLESS]
    with start_heeding(signal.SIGHUP, command, stdin=subprocess.DEVNULL) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == "runs\n"
        it.send_signal(signal.SIGHUP)
        try:
            it.wait(timeout=60 if code else 1)
        except subprocess.TimeoutExpired:
            it.kill()
            assert code is None
        else:
            assert (it.returncode, it.stderr and it.stderr.read()) == (code, "interrupted\n")


# A command whose output nobody reads, so that a write to it waits.
UNREAD = """
import asyncio, os
from contextlib import suppress
from emulator.commands import main as cli
from emulator.console.interrupts import run_interruptibly

def write():
    os.write(output, b"starts\\n")
    print("progress", flush=True)

async def write_and_run():
    write()
    await asyncio.Event().wait()

cli.app = lambda *_, **__: {}
output, (_, full) = os.dup(1), os.pipe()
os.set_blocking(full, False)
with suppress(BlockingIOError):
    while True:
        os.write(full, b"x")
os.set_blocking(full, True)
os.dup2(full, 1)
os.dup2(full, 2)
cli.main()
"""


@pytest.mark.parametrize("work", ["write()", "run_interruptibly(write_and_run())"])
def test_a_signal_ends_a_command_whose_output_nobody_reads(work: str) -> None:
    with start_heeding(signal.SIGTERM, [sys.executable, "-c", UNREAD.format(work)]) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == "starts\n"
        it.send_signal(signal.SIGTERM)
        try:
            assert it.wait(timeout=60) == 130
        finally:
            it.kill()


# A command that has work to do after its terminal is gone.
LONGER_THAN_ITS_TERMINAL = """
from pathlib import Path
from emulator.commands import main as cli

def app(*_, **__):
    print("begun", flush=True)
    input()
    print("progress", flush=True)
    Path("report").touch()

cli.app = app
cli.main()
"""


def test_a_command_that_keeps_running_when_its_terminal_is_gone_does_all_its_work(tmp_path: Path) -> None:
    master, terminal = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", LONGER_THAN_ITS_TERMINAL],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, stdin=subprocess.PIPE, stdout=terminal,
        stderr=terminal, start_new_session=True,
    ) as it:  # fmt: skip
        os.close(terminal)
        assert os.read(master, 100) == b"begun\r\n"
        os.close(master)
        it.communicate(b"\n", timeout=60)
    assert it.returncode == 0
    assert (tmp_path / "report").exists()


# A command whose terminal is closed.
NO_TERMINAL = """
import os
from emulator.commands import main as cli

def app(*_, **__):
    master, terminal = os.openpty()
    os.dup2(terminal, 1)
    os.close(terminal)
    os.close(master)
    print("progress", flush=True)

cli.app = app
cli.main()
"""


def test_a_terminal_that_is_gone_is_named_in_a_line() -> None:
    ended = subprocess.run([sys.executable, "-c", NO_TERMINAL], capture_output=True, text=True, timeout=60, check=False)
    said = "error: a terminal is gone or a disk fails, so output is not complete; run again\n"
    assert (ended.returncode, ended.stderr) == (5, said)


# A command that Ctrl-C reaches while a data class is made, as those of libraries are when they are imported.
INTERRUPTED = """
from emulator.commands import main as cli

def app(*_, **__):
    exec("raise KeyboardInterrupt")

cli.app = app
cli.main()
"""


def test_an_interrupt_in_the_middle_of_an_import_ends_a_command_with_the_code_of_one(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    ended = subprocess.run(
        [sys.executable, "-m", "interrupted"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")


DELETED = "error: the current folder has been deleted; change to another folder, for instance by cd\n"


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("{} --version >/dev/full", 5, "error: a disk is full, so output is not complete; free space and run again\n"),
        ("{} --version >&-", 0, ""),
        ("{} report >&- 2>&-", 2, ""),
        ("rmdir $PWD; {} --version >/dev/null", 0, ""),
        ("rmdir $PWD; {} check digits", 5, DELETED),
        ("rmdir $PWD; {} run digits --out /tmp/none", 5, DELETED),
        ("{} report 2>/dev/full", 2, ""),
    ],
)
def test_a_command_ends_in_order_without_a_place_for_its_output_or_a_folder(
    shell: str, code: int, said: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        ["bash", "-c", shell.format(f"{sys.executable} -m emulator")], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", said)


# A command whose own code uses workers, and leaves processes behind that hold its output, and threads.
LEAVES = """
import multiprocessing, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from emulator.commands import main as cli

def app(*_, **__):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(abs, range(9))
    pool.join()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
    global left
    left = multiprocessing.get_context("fork").Pool(2)
    ThreadPoolExecutor().submit(time.sleep, 600)
    threading.Thread(target=time.sleep, args=(600,)).start()
    print("done")

cli.app = app
cli.main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
def test_processes_and_threads_that_own_code_starts_print_nothing_and_hold_no_command_up() -> None:
    ended = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


NEVER_ENDS = """
import atexit, time
from emulator.commands import main as cli

def app(*_, **__):
    atexit.register(time.sleep, 600)
    print("done")

cli.app, cli.END_S = app, 0.1
cli.main()
"""


def test_a_command_ends_with_its_output_if_own_code_never_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", NEVER_ENDS], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
