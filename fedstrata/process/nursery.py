"""A nursery is a process that has imported the modules of a program, and forks to start the program.

A new interpreter imports torch in 3 s of CPU time. Forks share this time and the memory of the modules.

When it forks, a nursery has one thread, no connection, and no code of the user. Its owner is the process that started
it. If the nursery has more threads, or ends, the owner starts new interpreters instead. The owner also does so for
processes that need other environment variables or another current folder. Owner and nursery exchange JSON over a pair
of sockets.
"""

import asyncio
import ctypes
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Self

from fedstrata.process.starting import INTERPRETER, Files, Started

LONGEST_MESSAGE = 1 << 17
ROOM = " " * 4096  # in the nursery's command line, for the command lines of forks
STREAMS = ("stdin", "stdout", "stderr")
ARG_START, ARG_END = 45, 46  # fields of /proc/PID/stat after the program's name


class Nurseries:
    """Start programs by forks of nurseries. Each group of programs has one nursery, which starts when it is first
    needed.
    """

    def __init__(self, *groups: tuple[str, ...]) -> None:
        self._groups = groups if sys.platform == "linux" else ()
        self._nurseries: dict[tuple[str, ...], _Nursery] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for nursery in self._nurseries.values():
            nursery.close()

    def prepare(self, programs: Sequence[str]) -> None:
        """Start the nurseries of these programs."""
        for group in self._groups:
            if group not in self._nurseries and set(group) & set(programs):
                with suppress(OSError):  # the next start says why
                    self._nurseries[group] = _Nursery(group)

    async def start(
        self, command: Sequence[str], environment: Mapping[str, str], files: Files, hurry: asyncio.Event
    ) -> Started:
        """Let a nursery fork or, if this is not possible, start a new interpreter."""
        self.prepare(command[:1])
        nursery = next((each for group, each in self._nurseries.items() if command[0] in group), None)
        if nursery is not None and not environment:
            forked = await nursery.fork(command, files, hurry)
            if forked is not None:
                return forked
        return await INTERPRETER.start(command, environment, files, hurry)


class _Forked:
    """Hold a process that a nursery has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        return self._code.result() if self._code.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    def end(self, code: int) -> None:
        """Note the exit code of the process, which has ended."""
        if not self._code.done():
            self._code.set_result(code)


class _Nursery:
    """Own one nursery, and ask it for forks."""

    def __init__(self, programs: Sequence[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._surroundings = _surroundings()
        self._is_ready: asyncio.Future[bool] = self._loop.create_future()
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[_Forked | None]] = {}
        self._forked: dict[int, _Forked] = {}
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            there = theirs.fileno()
            words = (sys.executable, "-P", "-m", __name__, str(there), *programs, ROOM)
            none = subprocess.DEVNULL
            self._process = subprocess.Popen(  # noqa: S603  # no input
                words, stdin=none, stdout=none, stderr=none, pass_fds=[there], start_new_session=True
            )
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket.fileno(), self._hear)

    async def fork(self, command: Sequence[str], files: Files, hurry: asyncio.Event) -> _Forked | None:
        """Return a new process, or None if the nursery cannot start it."""
        hurried: asyncio.Future[bool] = asyncio.ensure_future(hurry.wait())
        await asyncio.wait({self._is_ready, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not self._is_ready.done() or not self._is_ready.result() or self._surroundings != _surroundings():
            return None
        number = next(self._numbers)
        asked: asyncio.Future[_Forked | None] = self._loop.create_future()
        self._asked[number] = asked
        try:
            socket.send_fds(self._socket, [json.dumps([number, *command]).encode()], files)
        except OSError:  # the nursery has just ended
            del self._asked[number]
            return None
        return await asked

    def close(self) -> None:
        """End the nursery. Its processes have ended before."""
        self._process.kill()
        self._process.wait()
        self._lose()

    def _hear(self) -> None:
        """Take a message of the nursery, or of a process that it has just forked."""
        try:
            message = self._socket.recv(LONGEST_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._lose()
            return
        said: dict[str, Any] = json.loads(message)
        if said["event"] == "ready":
            self._is_ready.set_result(True)
            return
        number = said["number"]
        asked = self._asked.pop(number, None)
        if said["event"] == "refused":
            if asked is not None:
                asked.set_result(None)
            return
        if asked is not None:
            forked = self._forked[number] = _Forked(said["pid"])
            if not asked.cancelled():
                asked.set_result(forked)
        if said["event"] == "ended":
            self._forked.pop(number).end(said["code"])

    def _lose(self) -> None:
        """Note that the nursery has ended. Kill the processes that it has forked: nobody can tell how they end."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        if not self._is_ready.done():
            self._is_ready.set_result(False)
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(None)
        for forked in self._forked.values():
            self._kill(forked)

    def _kill(self, forked: _Forked) -> None:
        try:
            descriptor = os.pidfd_open(forked.pid)
        except OSError:  # it has ended
            forked.end(-signal.SIGKILL)
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(forked.pid, signal.SIGKILL)
        self._loop.add_reader(descriptor, self._killed, descriptor, forked)

    def _killed(self, descriptor: int, forked: _Forked) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        forked.end(-signal.SIGKILL)


def _surroundings() -> tuple[dict[str, str], str]:
    """Return what a process takes over from its parent: the environment and the current folder."""
    with suppress(OSError):  # the folder was deleted
        return dict(os.environ), str(Path.cwd())
    return dict(os.environ), ""


def _load(programs: Sequence[str]) -> None:
    """Import all modules of programs, as their `__main__` does when it runs."""
    gc.disable()
    for program in programs:
        import_module(f"{program}.__main__")
        del sys.modules[f"{program}.__main__"]  # `runpy` warns of a module that is there already
    gc.freeze()
    gc.enable()


def _serve(control: socket.socket) -> Sequence[str]:
    """Fork when the owner asks. In a fork, return the command that the fork has to run. In the nursery, return an empty
    command when the owner has ended.
    """
    children: dict[int, tuple[int, int]] = {}  # number and process id, by the descriptor of a process
    selector = selectors.PollSelector()  # unlike epoll, it has no descriptor that forks would share
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fd != control.fileno():
                selector.unregister(key.fd)
                os.close(key.fd)
                number, pid = children.pop(key.fd)
                _, status = os.waitpid(pid, 0)
                _say(control, event="ended", number=number, pid=pid, code=os.waitstatus_to_exitcode(status))
                continue
            message, files, _, _ = socket.recv_fds(control, LONGEST_MESSAGE, 3)
            if not message:
                return ()
            asked: list[Any] = json.loads(message)
            number, command = asked[0], asked[1:]
            try:
                pid = os.fork()
            except OSError:
                _say(control, event="refused", number=number)
                pid = -1
            if pid == 0:
                _begin(control, number, files, tuple(children))
                return command
            for file in files:
                os.close(file)
            if pid > 0:
                descriptor = os.pidfd_open(pid)
                children[descriptor] = (number, pid)
                selector.register(descriptor, selectors.EVENT_READ)


def _begin(control: socket.socket, number: int, files: Sequence[int], others: Sequence[int]) -> None:
    """Give this fork a session of its own, and `files` as its standard streams. Close the descriptors `others`, which
    belong to the nursery. Tell the owner the process id of this fork, which the owner knows by `number`.
    """
    os.setsid()
    for standard, (name, file) in enumerate(zip(STREAMS, files, strict=True)):
        os.dup2(file, standard)
        old = getattr(sys, name)  # takes the new file for the nursery's, which has positions
        new = os.fdopen(standard, "w" if standard else "r", encoding=old.encoding, errors=old.errors, closefd=False)
        new.reconfigure(line_buffering=old.line_buffering)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    for descriptor in (*files, *others):
        os.close(descriptor)
    _say(control, event="started", number=number, pid=os.getpid())
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # own code may use this generator, which all forks would share


def _say(control: socket.socket, **message: Any) -> None:
    with suppress(BrokenPipeError):  # the owner has ended
        control.send(json.dumps(message).encode())


def _show(command: Sequence[str]) -> None:
    """Let `ps` and /proc/PID/cmdline show the command of this fork."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[ARG_START]), int(fields[ARG_END])
    text = b"\0".join(os.fsencode(word) for word in (sys.executable, "-P", "-m", *command))
    if start and end > start:
        ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)


def main() -> None:
    """Import the modules of programs, and fork when the owner asks. In a fork, run its program as `python -m` does."""
    descriptor, *programs, _room = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as control:
        _load(programs)
        if len(list(Path("/proc/self/task").iterdir())) > 1:  # a fork would lack the other threads
            return
        _say(control, event="ready")
        command = _serve(control)
    if command:
        _show(command)
        sys.argv = list(command)
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
