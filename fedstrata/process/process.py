"""Start a service process, report its addresses, and end it."""

import argparse
import asyncio
import ctypes
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import uvloop

from fedstrata.errors import EXIT_RUN_FAILED, FedstrataError, OutputError
from fedstrata.plugins import PART_OF_RUN
from fedstrata.process.descriptors import raise_limit
from fedstrata.process.forks import spare_forks
from fedstrata.process.logs import EventLog, configure_logs, print_whatever_comes
from fedstrata.process.private_files import private_folder
from fedstrata.process.quoting import printable
from fedstrata.process.spans import process_spans

log = EventLog("process")
PR_SET_PDEATHSIG = 1  # of Linux's prctl: choose the signal at the parent's end
YOUNG_OBJECTS = 10_000  # number of new objects that starts a garbage collection; Python's default is 700
Result = TypeVar("Result")


class Arguments(argparse.ArgumentParser):
    """Parse options that may also come from the environment: `--lps-id` from FEDSTRATA_LPS_ID."""

    def option(
        self, name: str, help: str, *, default: str | None = None, required: bool = False,  # noqa: A002
        read: Callable[[str], str] = str,
    ) -> None:  # fmt: skip
        """Add an option with a value, which `read` checks. The environment variable of the option replaces the default
        value.
        """
        variable = "FEDSTRATA_" + name.upper().replace("-", "_")
        value = os.environ.get(variable) or default
        about = f"{help} (environment: {variable})"
        self.add_argument(f"--{name}", type=read, default=value, required=required and value is None, help=about)


def service_arguments(tier: str, description: str) -> Arguments:
    """Return a parser with the options that all services of a run have."""
    arguments = Arguments(prog=f"python -m {tier}", description=description)
    arguments.option("experiment", "Use this experiment file.", required=True)
    arguments.option("http", "Serve /metrics, /healthz and /readyz at this host:port.", default="127.0.0.1:0")
    arguments.option(
        "http-names",
        "Answer HTTP requests to these names (separated by commas), as to addresses and this machine's names.",
        default="",
    )
    return _with_common(arguments)


def program_arguments(module: str, description: str) -> Arguments:
    """Return a parser with the options that all programs have."""
    arguments = Arguments(prog=f"python -m {module}", description=description)
    return _with_common(arguments)


def _with_common(arguments: Arguments) -> Arguments:
    arguments.option("log-level", "Log from this level on: DEBUG, INFO, WARNING or ERROR.", default="INFO", read=_level)
    arguments.add_argument(
        "--exit-with-parent",
        action="store_true",
        help="Stop when standard input ends, as it does when the parent process ends.",
    )
    return arguments


def _level(text: str) -> str:
    level = text.upper()
    if level not in logging.getLevelNamesMapping():
        raise argparse.ArgumentTypeError(f"{text!r} is not a level; give DEBUG, INFO, WARNING or ERROR")
    return level


def folder(text: str) -> Path:
    """Return the path of a writable folder. If the folder is missing, create it so that only its owner may open it.
    Raises OutputError if the folder cannot be created or written.
    """
    path = Path(text)
    private_folder(path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise OutputError(f"{path} is not writable; give another folder")
    return path


def say_listening(**addresses: str) -> None:
    """Print the addresses of this process as one JSON line on standard output, for the program that started the
    process.
    """
    _announce("listening", **addresses)


def _announce(event: str, **fields: str) -> None:
    with suppress(OSError, ValueError):  # that program has ended, or own code has closed the output
        print(json.dumps({"event": event, **fields}), flush=True)


def run_process(
    options: argparse.Namespace,
    main: Callable[[argparse.Namespace, asyncio.Event], Awaitable[int | None]],
    *,
    tier: str | None = None,
) -> NoReturn:
    """Run a service until its work is done or a signal stops it. Exit with a code of `fedstrata.errors`.

    `tier` is the tier under which the process sends spans; None for programs that have no part in rounds.

    If `main` returns None, a signal has stopped it before its work was done. The exit code is then the code of the
    signal, 143 for SIGTERM. From this code, a supervisor knows that the process is still needed.
    """
    print_whatever_comes()
    configure_logs(options.log_level)
    if tier is not None:
        os.environ[PART_OF_RUN] = tier
    try:
        raise_limit()
        if tier is not None and (spans := process_spans()) is not None:
            spans.open(tier)  # this takes a second, for which the first round would wait
        code = run_loop(_until_stopped(partial(main, options), exit_with_parent=options.exit_with_parent))
    except FedstrataError as error:
        _say(f"error: {printable(str(error))}")
        code = error.exit_code
    except Exception as error:
        log.exception("process_failed")
        _say(f"error: {printable(f'{type(error).__name__}: {error}')}")
        code = EXIT_RUN_FAILED
    if (spans := process_spans()) is not None:
        spans.close()
    if code == 0:
        _announce("finished")  # from the exit code alone, the program that started it could not tell this from os._exit
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    _end_descendants()
    os._exit(code)  # unlike sys.exit, this does not wait for threads


def _end_descendants() -> None:
    """End the processes that own code has left behind, if this process has a session of its own. Otherwise its process
    group may have processes of others, such as the rest of a shell's pipeline.
    """
    if os.getsid(0) == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


def _say(line: str) -> None:
    with suppress(OSError):  # the disk with the log may be full; the exit code still says what happened
        print(line, file=sys.stderr, flush=True)


def run_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end on uvloop's event loop, which is faster than asyncio's."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def _until_stopped(main: Callable[[asyncio.Event], Awaitable[int | None]], *, exit_with_parent: bool) -> int:
    stop, first = asyncio.Event(), signal.SIGTERM  # if the parent ends, the process stops as by SIGTERM
    loop = asyncio.get_running_loop()

    def note(number: signal.Signals) -> None:
        nonlocal first
        first = first if stop.is_set() else number
        stop.set()

    spare_forks((signal.SIGTERM, signal.SIGINT))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, note, number)
    if exit_with_parent:
        _continue_after_parent()
        loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_input, loop, stop)
        # uvloop set it to non-blocking, which also affects a terminal's output.
        os.set_blocking(sys.stdin.fileno(), True)
    code = await main(stop)
    return 128 + first if code is None else code


def _continue_after_parent() -> None:
    """On Linux, ask the kernel to send SIGCONT to this process when its parent ends. A paused process would not see the
    end of its input.
    """
    with suppress(AttributeError):  # other systems have no prctl
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def _stop_at_end_of_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()


def spare_what_is_loaded() -> None:
    """Reduce the time for garbage collection.

    Objects that exist now, mostly modules, are excluded. Otherwise each full collection would take 0.1 s. The excluded
    objects are not collected first, because this would also take 0.1 s. Objects that are made later are collected less
    often than by default. With the default, a process with 2,000 devices spent an eighth of its time on collections.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(YOUNG_OBJECTS)


async def first_of(stop: asyncio.Event, work: Awaitable[int]) -> int | None:
    """Return the result of the work. If `stop` is set first, cancel the work and return None."""
    job, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait({job, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if job.done():
        return job.result()
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)
    return None
