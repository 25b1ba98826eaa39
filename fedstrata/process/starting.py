"""Start a process of a program. `Interpreter` starts a new interpreter. Other classes with the interface `Starter` may
start the process in another way.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

Files = tuple[int, int, int]  # descriptors of standard input, standard output and standard error


class Started(Protocol):
    """Hold a process that a `Starter` has started. `asyncio.subprocess.Process` is one."""

    @property
    def pid(self) -> int:
        """The id of the process, and of the session that it leads."""

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative signal that ended the process; None while it runs."""

    async def wait(self) -> int:
        """Wait until the process ends, and return its `returncode`."""


class Starter(Protocol):
    """Start processes."""

    def prepare(self, programs: Sequence[str]) -> None:
        """Prepare to start these programs, which will soon be needed."""

    async def start(
        self, command: Sequence[str], environment: Mapping[str, str], files: Files, hurry: asyncio.Event
    ) -> Started:
        """Run `python -m` with this command in a session of its own, and return the process. `environment` adds
        variables. Once `hurry` is set, do not wait for a nursery. Raises OSError if the system starts no process.
        """


class Interpreter:
    """Start each process in a new interpreter."""

    def prepare(self, programs: Sequence[str]) -> None:
        """Do nothing."""

    async def start(
        self, command: Sequence[str], environment: Mapping[str, str], files: Files, hurry: asyncio.Event
    ) -> Started:
        """Run `python -P -m` with this command. With `-P`, modules in the current folder are not imported."""
        words = (sys.executable, "-P", "-m", *command)
        variables = {**os.environ, **environment}
        stdin, stdout, stderr = files
        return await asyncio.create_subprocess_exec(
            *words, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True, env=variables
        )


INTERPRETER = Interpreter()
