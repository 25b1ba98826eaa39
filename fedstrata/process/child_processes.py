"""Child processes of one owner. A child is restarted after a fatal signal, and ends when its owner ends.

Each child holds the read end of a pipe to which only its owner can write. When the owner dies, the kernel closes the
pipe, and the child notices this. Children run in separate sessions, so Ctrl-C reaches only the owner. The owner then
stops the children.

The user's code may start processes, too. They end with the child that started them.
"""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fedstrata.errors import (
    EXIT_INTERRUPTED,
    EXIT_NETWORK,
    AddressError,
    DataError,
    ExperimentError,
    FedstrataError,
    HandshakeError,
    OutputError,
    RunStoppedError,
)
from fedstrata.process.address import any_port
from fedstrata.process.quoting import printable
from fedstrata.process.starting import INTERPRETER, Started, Starter

RESTARTS_MAX = 20
STOP_DEADLINE_S = 8.0  # time between SIGTERM and SIGKILL
LOOK_AT_LOG_S = 10.0
LONGEST_LOG_BYTES = 32 << 20  # a longer log is moved to NAME.log.1
TAIL_BYTES = 1 << 16  # end of a log in which the reason of a process's end is searched
REASON_CHARACTERS = 500
PIPE_BYTES = 1 << 16  # as much as a pipe holds; longer lines are no announcements
BY_EXIT_CODE = {
    error.exit_code: error
    for error in (RunStoppedError, ExperimentError, DataError, OutputError, AddressError, HandshakeError)
}


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """Describe a process to run as `python -m …`, and the names of the addresses that it reports."""

    name: str  # name in messages, and of the log file
    command: tuple[str, ...]  # module and arguments
    endpoints: Mapping[str, str] = field(default_factory=dict)  # by name of an address, the option that sets it
    listens_at: Mapping[str, str] = field(default_factory=dict)  # first addresses by name, else any port of loopback
    environment: Mapping[str, str] = field(default_factory=dict)  # variables in addition to the owner's environment
    may_finish: bool = False  # whether the process ends when its work is done; otherwise it is then restarted
    may_move: bool = False  # whether the process may listen at another address after a restart
    may_go: Callable[[], bool] = lambda: False  # whether the run continues without the process if it ends with an error


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Describe a restart: the process that died, the cause, and how many restarts this process has had."""

    process: str
    cause: str  # a signal such as SIGKILL, or an exit code
    count: int
    instead_of: str = ""  # name of the dead process that this process replaces; empty if it replaces itself


class OwnedProcess:
    """Run one process, and restart it when it dies. After a restart, the process listens at the same addresses as
    before, unless `may_move` allows new addresses.
    """

    def __init__(
        self, spec: ProcessSpec, logs: Path, on_restart: Callable[[Restart], None], starter: Starter = INTERPRETER
    ) -> None:
        self.spec = spec
        self._starter = starter
        self.log_path = logs / f"{spec.name}.log"
        self._on_restart = on_restart
        self._addresses: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self._process: Started | None = None
        self._is_done = False  # whether the process has announced that its work is done
        self._stopping = asyncio.Event()

    async def addresses(self) -> Mapping[str, str]:
        """Wait until the process listens, and return its addresses by name."""
        return await asyncio.shield(self._addresses)

    @property
    def has_started(self) -> bool:
        """True once the process has reported its addresses."""
        return self._addresses.done()

    @property
    def pid(self) -> int | None:
        """The id of the running process; None if it does not run."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def keep_alive(self) -> None:
        """Run the process until it has done its work, or until `terminate` is called. If a signal ends the process
        earlier, restart it. A server (`may_finish` is false) is restarted even after it has done its work.

        Raises:
            FedstrataError: the process ended with an error of its own, ended before its work was done, or died too
                often.
        """
        for count in range(1, RESTARTS_MAX + 2):
            before = self.log_path.stat().st_size if self.log_path.exists() else 0
            code = await self._run_once()
            if code == EXIT_NETWORK and self.spec.may_move and self._addresses.done():
                self._addresses = asyncio.get_running_loop().create_future()
                code = await self._run_once()  # another process has taken its address: use any address
            if self._stopping.is_set() or (self._is_done and self.spec.may_finish):
                return
            cause = _cause(code)
            if code == 0 and not self._is_done:
                raise RunStoppedError(
                    f"{self.spec.name} ended with exit code 0 before its work was done; own code must not end its "
                    f"process, for instance by os._exit; {_where(self.log_path)}"
                )
            if code > 0 and code not in (EXIT_INTERRUPTED, 128 + signal.SIGTERM):
                if self.spec.may_go():
                    return
                raise self._failure(code, before)
            if count <= RESTARTS_MAX:
                self._on_restart(Restart(process=self.spec.name, cause=cause, count=count))
        raise RunStoppedError(
            f"{self.spec.name} died {RESTARTS_MAX + 1} times, the last time by {cause}; its log is {self.log_path}"
        )

    def terminate(self) -> None:
        """Ask the process to stop. It is not restarted."""
        self._stopping.set()
        self._ask_to_stop()

    def kill(self) -> bool:
        """Kill the process and all processes that it has started. Return whether the process existed."""
        if self.pid is None:
            return False
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _ask_to_stop(self) -> None:
        if self.pid is not None:  # not Process.terminate, which may take the exit code that asyncio awaits
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    async def _run_once(self) -> int:
        """Run the process once and return its exit code; a negative code is the signal that killed it. The processes
        that it leaves behind are killed.
        """
        self._is_done = False
        with ExitStack() as opened:
            self._process, said = process, _ = await self._spawn(opened)
            if self._stopping.is_set():
                self._ask_to_stop()
            waiting = asyncio.create_task(process.wait())
            try:
                while not (await asyncio.wait({waiting}, timeout=LOOK_AT_LOG_S))[0]:
                    shorten(self.log_path)
            finally:
                waiting.cancel()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            said.read()
            return waiting.result()

    async def _spawn(self, opened: ExitStack) -> tuple[Started, "_Lines"]:
        """Start the process. Return the process, and the object that reads the lines which it writes. `opened` closes
        the pipes to the process.

        The pipes are not asyncio's, because own code may leave processes behind that hold a pipe. asyncio would wait
        until these processes have ended, too.
        """
        try:
            with ExitStack() as given:
                stdin, _ = _pipe(given, opened)  # `opened` closes the owner's end
                said, stdout = _pipe(opened, given)
                log = given.enter_context(self.log_path.open("ab"))
                files = stdin, stdout, log.fileno()
                process = await self._starter.start(self._command(), self.spec.environment, files, self._stopping)
        except OSError as error:
            raise RunStoppedError(f"{self.spec.name} cannot be started: {error}") from None
        return process, opened.enter_context(_Lines(said, self._hear))

    def _command(self) -> tuple[str, ...]:
        known = self._addresses.result() if self._addresses.done() else self.spec.listens_at
        anywhere = any_port()
        options = ((option, known.get(what, anywhere)) for what, option in self.spec.endpoints.items())
        return (*self.spec.command, *(word for pair in options for word in pair))

    def _hear(self, line: bytes) -> None:
        """Take a line that the process has written."""
        said = _announced(line)
        self._is_done = self._is_done or said.get("event") == "finished"
        if said.get("event") == "listening" and not self._addresses.done():
            self._addresses.set_result({what: str(said[what]) for what in self.spec.endpoints if what in said})

    def _failure(self, code: int, since: int) -> FedstrataError:
        reason = last_error(self.log_path, since) or f"ended with exit code {code}; {_where(self.log_path)}"
        return BY_EXIT_CODE.get(code, RunStoppedError)(f"{self.spec.name}: {reason}")


class Supervisor:
    """Run the processes of one run. `stop` ends all of them."""

    def __init__(self, logs: Path, on_restart: Callable[[Restart], None], starter: Starter = INTERPRETER) -> None:
        self._logs = logs
        self._on_restart = on_restart
        self._starter = starter
        self._processes: list[OwnedProcess] = []
        self._jobs: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def start(self, spec: ProcessSpec) -> OwnedProcess:
        """Start a process, and keep it alive from now on."""
        process = OwnedProcess(spec, self._logs, self._on_restart, self._starter)
        job = asyncio.create_task(process.keep_alive())
        job.add_done_callback(self._job_ended)
        self._processes.append(process)
        self._jobs.append(job)
        return process

    async def failure(self) -> BaseException:
        """Wait until a process cannot be restarted any more. Return the error of the first such process."""
        return await asyncio.shield(self._failure)

    def fail(self, error: BaseException) -> None:
        """Make `failure` return this error, unless an earlier error is already known."""
        if not self._failure.done():
            self._failure.set_result(error)

    async def stop(self) -> None:
        """End all processes. First ask them to stop, and kill them if they still run after some time. If this call is
        cancelled, it still ends all processes.
        """
        await to_the_end(self._end())

    async def _end(self) -> None:
        for process in self._processes:
            process.terminate()
        if not self._jobs:
            return
        _, alive = await asyncio.wait(self._jobs, timeout=STOP_DEADLINE_S)
        if alive:
            for process in self._processes:
                process.kill()
            await asyncio.wait(alive)

    def _job_ended(self, job: asyncio.Task[None]) -> None:
        if not job.cancelled() and (error := job.exception()):
            self.fail(error)


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Do this work. If the caller is cancelled meanwhile, still do the work to its end, then raise CancelledError."""
    job = asyncio.ensure_future(work)
    try:
        await asyncio.shield(job)
    except asyncio.CancelledError:
        await job
        raise


def _where(log: Path) -> str:
    """Return a text with the path of a log, for an error message. If the disk of the log is full, the text says so,
    because the log may then lack the reason of the error.
    """
    with suppress(OSError):  # the folder was deleted
        if shutil.disk_usage(log.parent).free < TAIL_BYTES:
            return f"the disk of its log {log} is full; free space"
    return f"its log is {log}"


def shorten(log: Path) -> None:
    """If a log is too long, move its content to another file. The process continues to write to the emptied log."""
    with suppress(OSError):  # for example on a full disk: the run matters more than its log
        if log.stat().st_size > LONGEST_LOG_BYTES:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)


def last_error(log: Path, since: int = 0) -> str | None:
    """Return the reason why a process ended, from its log after byte `since`. The reason is the last line that begins
    with `error: `. Without such a line, it is the last line of the log, such as an exception of Python. If the last
    line is an event, or the log cannot be read, return None.
    """
    try:
        with log.open("rb") as file:
            size = log.stat().st_size
            file.seek(max(since if since <= size else 0, size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:  # for example, the folder was deleted
        return None
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    last = next((line for line in reversed(lines) if line.strip()), "")
    reason = errors[-1] if errors else "" if last.startswith("{") else last
    return printable(reason)[:REASON_CHARACTERS] or None


class _Lines:
    """Read the lines that arrive in a pipe, and call a function with each line."""

    def __init__(self, pipe: int, hear: Callable[[bytes], None]) -> None:
        os.set_blocking(pipe, False)
        self._pipe, self._hear, self._rest = pipe, hear, b""
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._loop.add_reader(self._pipe, self.read)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._pipe)

    def read(self) -> None:
        """Read what the pipe holds now."""
        try:
            data = os.read(self._pipe, PIPE_BYTES)
        except BlockingIOError:
            return
        if not data:  # nobody can write to the pipe any more
            self._loop.remove_reader(self._pipe)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:PIPE_BYTES]
        for line in lines:
            self._hear(line)


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Return the two ends of a new pipe. `reader` and `writer` close them."""
    ends = os.pipe()
    for stack, end in zip((reader, writer), ends, strict=True):
        stack.callback(os.close, end)
    return ends


def _announced(line: bytes) -> Mapping[str, object]:
    """Return the content of a line such as {"event": "listening", "grpc": "127.0.0.1:41234", …}. If a line is no
    announcement, return an empty mapping.
    """
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
