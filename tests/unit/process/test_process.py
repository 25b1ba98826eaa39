"""How a service process starts: an error in its options takes one line, and its log has its own events."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from fedstrata.errors import EXIT_USAGE, OutputError
from fedstrata.process.process import folder, program_arguments


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be_one_is_an_error_of_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="give another"):
        folder(str(tmp_path / name))


def test_a_level_that_does_not_exist_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDSTRATA_LOG_LEVEL", "verbose")
    with pytest.raises(SystemExit):
        program_arguments("lps", "").parse_args([])
    assert "argument --log-level: 'verbose' is not a level; give DEBUG" in capsys.readouterr().err
    assert program_arguments("lps", "").parse_args(["--log-level", "debug"]).log_level == "DEBUG"


def test_at_debug_a_process_logs_its_own_events_and_no_line_of_grpc_for_each_call() -> None:
    program = (
        "import logging; from fedstrata.process.logs import EventLog, configure_logs; configure_logs('DEBUG');"
        "grpc = logging.getLogger('grpc._cython.cygrpc'); grpc.debug('running loop'); grpc.warning('went wrong');"
        "EventLog('device').debug('fetch_cut')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["went wrong", "fetch_cut"]


def test_an_error_has_its_exit_code_even_if_the_log_is_on_a_full_disk(tmp_path: Path) -> None:
    words = ("--experiment", str(tmp_path / "none.yaml"), "--gps", "127.0.0.1:1", "--state", str(tmp_path))
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run([sys.executable, "-m", "lps", *words], stderr=full, check=False)
    assert done.returncode == EXIT_USAGE


@pytest.mark.parametrize("module", ["gps", "lps", "device", "fleet", "fleet.board", "emulator"])
def test_a_program_started_by_its_module_executes_no_file_of_the_current_folder(tmp_path: Path, module: str) -> None:
    for name in ("typing", "json", "argparse", "numpy", "rich"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)")
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0


SERVICE = """
from fedstrata.process.process import program_arguments, run_process, say_listening

async def main(options, stop):
    say_listening()
    await stop.wait()
    return 0

run_process(program_arguments("service", "").parse_args(), main)
"""
PARENT = f"""
import os, signal, subprocess, sys
pipe, command = subprocess.PIPE, [sys.executable, "-c", {SERVICE!r}, "--exit-with-parent"]
child = subprocess.Popen(command, stdin=pipe, stdout=pipe)
child.stdout.readline()
os.kill(child.pid, signal.SIGSTOP)
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux continues the process")
def test_a_paused_process_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    ended, _, _ = select.select([child], [], [], 20)
    os.close(child)
    assert ended


def test_a_process_without_a_reader_of_its_addresses_works_on_until_it_is_stopped() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", SERVICE, "--exit-with-parent"]
    done = subprocess.run(command, input="", stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


# A service with own code that forks workers and ends them.
FORKS = """
import multiprocessing
from fedstrata.process.process import program_arguments, run_process

async def main(options, stop):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(abs, range(9))
    pool.join()
    return 1 if stop.is_set() else 0

run_process(program_arguments("service", "").parse_args(), main)
"""


def test_workers_that_own_code_forks_end_by_sigterm_and_do_not_stop_the_service() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"event": "finished"}\n', "")


LEAVES = """
import subprocess, sys
from fedstrata.process.process import program_arguments, run_process

async def main(options, stop):
    print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
    return 3

run_process(program_arguments("service", "").parse_args(), main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the test waits for a process that is not its child")
def test_what_own_code_leaves_behind_ends_with_the_service() -> None:
    command = [sys.executable, "-c", LEAVES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as service:
        said, _ = service.communicate(timeout=60)  # until nobody holds its output
    assert (service.returncode, len(said.splitlines())) == (3, 1)


def test_a_process_is_ready_without_a_collection_of_the_modules_that_it_has_loaded() -> None:
    program = (
        "import gc; gc.disable(); from fedstrata.process.process import spare_what_is_loaded;"
        "seen = []; gc.callbacks.append(lambda phase, info: seen.append(phase));"
        "spare_what_is_loaded(); print(seen, gc.get_freeze_count() > 10_000, gc.isenabled())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[] True True\n"
