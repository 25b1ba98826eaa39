"""Processes that the user's code starts in a process of Fedstrata, such as the workers of `multiprocessing.Pool`."""

import os
import signal
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any


def spare_forks(numbers: Iterable[signal.Signals]) -> None:
    """Let forked processes keep the present handlers of these signals, whichever handlers this process sets later.

    Otherwise a worker would ignore the SIGTERM that should end it. Its event loop would even send the signal on to this
    process, because both have the same wakeup descriptor.
    """
    os.register_at_fork(after_in_child=partial(_restore, {number: signal.getsignal(number) for number in numbers}))


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def end_children() -> None:
    """On Linux, kill the children of this process that the user's code has left running. Otherwise the interpreter
    would wait for some of them. A program that reads a pipe of this process would wait for all children that hold the
    pipe.

    Two kinds of children are spared. Children with a session of their own, such as a browser, stay. The interpreter
    itself ends the workers of a `multiprocessing.Pool`, because it would wait for a killed worker that holds a lock.
    """
    module = sys.modules.get("multiprocessing.process")
    kill_children({child.pid for child in module.active_children() if child.daemon} if module else ())


def kill_children(spared: Collection[int | None] = ()) -> None:
    """On Linux, kill the children of this process that have no session of their own. Spare the ids in `spared`."""
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            for child in map(int, children.read_text().split()):
                if child not in spared and os.getpgid(child) == os.getpgrp():
                    os.kill(child, signal.SIGKILL)
