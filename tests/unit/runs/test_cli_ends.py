"""How the `fedstrata` command ends when a signal comes at an odd moment: after its work, in the middle of an import."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
# A command whose work is done, in an interpreter that is about to end and waits for a thread.
OVER = """
import sys, threading
from emulator.commands import main as cli

def lingers():
    threading.main_thread().join()
    print("over", flush=True)
    threading.Event().wait()

def app(*_, **__):
    threading.Thread(target=lingers).start()
    print("said")

cli.app = app
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("{} --version >/dev/full", 5, "error: a disk is full, so output is not complete; free space and run again\n"),
        ("{} --version >&-", 0, ""),
        ("{} report >&- 2>&-", 2, ""),
        ("rmdir $PWD; {} --version >/dev/null", 0, ""),
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
