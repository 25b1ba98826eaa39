"""Fetch the records of a sweep's runs from the reader, the pod that has mounted the sweep's folder."""

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
    """Read a reply of the reader pod. If the connection breaks, raise AddressError in place of OSError, because OSError
    would be taken for a failure to write files on this machine.
    """

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
    """Hold the state of all runs that have begun, as the reader pod has sent it."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._said = said

    @classmethod
    def at(cls, address: str) -> "BegunRuns":
        """Fetch the state of the runs from the reader pod at this address, and return it.

        Raises:
            AddressError: the reader pod does not answer.
            PayloadError: its reply is not a list of runs.
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
        """Return the last failure of a run. If the run has never failed, return None."""
        found = self._said.get(str(run))
        try:
            last = found["failures"][-1]  # type: ignore[index]  # of another form, it is no failure
            return Failure(reason=str(last["reason"]), seconds=float(last["seconds"]))
        except (TypeError, KeyError, IndexError, ValueError, OverflowError):
            return None


def fetch_record(address: str, run: Path, folder: Path) -> None:
    """Fetch the record of a run from the reader pod, and write its files to a folder. If the record is not complete, no
    file is written.

    Raises:
        AddressError: the reader pod does not answer, or ends its reply too early.
        PayloadError: the reply is not a record.
        OutputError: the folder cannot be written.
    """
    with _asked(address, str(run)) as reply:
        try:
            read_archive(reply, folder)
        except tarfile.TarError as error:
            raise AddressError(f"the reader pod has ended its reply too early: {error}") from None
