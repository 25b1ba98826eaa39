"""Programs that a measurement starts. Each has a session of its own, which ends with the program or at its deadline."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
STOP_S = 20.0  # from SIGTERM to SIGKILL, so that a run can end its own processes


class ProgramError(Exception):
    """A program failed, or did not end in time. The message has its last output."""


@contextmanager
def started(command: Sequence[str], *, timeout_s: float, log: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a program during the block. Its standard output can be read; its standard error goes to `log`.

    Raises:
        ProgramError: the program failed, or did not end in time.
    """
    late = threading.Event()
    with log.open("w", encoding="utf-8") as errors, subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
    ) as process:  # fmt: skip

        def stop() -> None:
            late.set()
            _end(process)

        timer = threading.Timer(timeout_s, stop)
        timer.start()
        try:
            yield process
            process.wait()
        finally:
            timer.cancel()
            _end(process)
    if process.returncode or late.is_set():
        how = f"did not end within {timeout_s:g} s" if late.is_set() else f"ended with {process.returncode}"
        words = log.read_text(encoding="utf-8", errors="replace").strip()[-1000:]
        raise ProgramError(f"{' '.join(command[:4])} … {how}: {words}")


def output_of(command: Sequence[str], *, timeout_s: float, folder: Path) -> str:
    """Return the output of a program."""
    with started(command, timeout_s=timeout_s, log=folder / "errors.log") as process:
        if process.stdout is None:
            raise ProgramError("the program was started without a pipe")
        return process.stdout.read()


def python(*words: str) -> list[str]:
    """Return a command that runs this environment's Python."""
    return [sys.executable, *words]


def environment() -> Mapping[str, str]:
    """Return this process's environment, with the project in the path and without usage reports of the peers."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **quiet, "PYTHONPATH": path, "GRPC_VERBOSITY": "ERROR"}


def _end(process: "subprocess.Popen[str]") -> None:
    """Stop a program and all processes in its group."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    _signal(process, signal.SIGKILL)  # processes of its group that are still running


def _signal(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
