"""Fetch the records of a sweep's folder in pods, through the reader."""

import http.client
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

from emulator.runs.archive import read_archive
from emulator.sweeps.claims import Failure
from fedstrata.errors import AddressError, PayloadError

TIMEOUT_S = 30.0
MOST_BYTES = 64 << 20  # the largest list of runs
DIRECT = build_opener(ProxyHandler({}))  # no proxy, even if the environment names one: the address is on this machine


class _Reply:
    """Read a reply of the reader. An error is about the connection, and not about files on this machine."""

    def __init__(self, reply: http.client.HTTPResponse) -> None:
        self._reply = reply

    def read(self, size: int) -> bytes:
        with _connected():
            return self._reply.read(size)


@contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise AddressError(f"the reader pod does not answer: {error}") from None


@contextmanager
def _asked(address: str, path: str) -> Iterator[_Reply]:
    with _connected():
        reply = DIRECT.open(f"http://{address}/{quote(path)}", timeout=TIMEOUT_S)  # a forwarded port of this machine
    with reply:
        yield _Reply(reply)


class BegunRuns:
    """Hold the state of the begun runs, as the reader gives it."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._said = said

    @classmethod
    def at(cls, address: str) -> "BegunRuns":
        """Ask a reader.

        Raises:
            AddressError: the reader does not answer. PayloadError: it sends no list of runs.
        """
        with _asked(address, "") as reply:
            content = reply.read(MOST_BYTES)
        try:
            said = json.loads(content)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise PayloadError(
                "the reader pod does not send a list of runs; delete this pod, and give the same command again"
            )
        return cls(said)

    def is_completed(self, run: Path) -> bool:
        """Return whether a run is completed."""
        found = self._said.get(str(run))
        return isinstance(found, dict) and found.get("is_completed") is True

    def failure(self, run: Path) -> Failure | None:
        """Return the last failure of a run; None if it never failed."""
        found = self._said.get(str(run))
        try:
            last = found["failures"][-1]  # type: ignore[index]  # of another form, it is no failure
            return Failure(reason=str(last["reason"]), seconds=float(last["seconds"]))
        except (TypeError, KeyError, IndexError, ValueError, OverflowError):
            return None


def fetch_record(address: str, run: Path, folder: Path) -> None:
    """Write the files of a run's record to a folder: all of them or none.

    Raises:
        AddressError: the reader does not answer, or breaks off. PayloadError: this is no record.
        OutputError: the folder cannot be written.
    """
    with _asked(address, str(run)) as reply:
        try:
            read_archive(reply, folder)
        except tarfile.TarError as error:
            raise AddressError(f"the reader pod has ended its reply too early: {error}") from None
