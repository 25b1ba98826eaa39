"""When the files of a certificate have been replaced: looked at where they are used, so that nobody has to wait."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from fedstrata.errors import CertificateError
from fedstrata.logs import EventLog

LOOK_S = 1.0  # how often a folder is looked into by those who use what was in it
Seen = tuple[tuple[int, ...], ...]  # what tells one set of files from another
Files = TypeVar("Files")
log = EventLog("trust")


class Renewal(Generic[Files]):
    """What a folder held when it was last looked into, for all who use its files; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: Files | None = None
        self._seen: Seen | None = None  # None: of files that were in no folder, which are used as they are
        self._next_look = 0.0

    def begin(self, files: Files, seen: Seen) -> None:
        """Note the files that were read first."""
        self._newest, self._seen = files, seen
        self._next_look = time.monotonic() + LOOK_S

    def newest(self, given: Files, look: Callable[[], Seen], read: Callable[[], Files], *, at_once: bool) -> Files:
        """The newest files that could be used; `given` as long as none were read."""
        if self._seen is None:
            return given
        if at_once or time.monotonic() >= self._next_look:
            with self._lock:
                self._look(look, read)
        return self._newest or given

    def _look(self, look: Callable[[], Seen], read: Callable[[], Files]) -> None:
        self._next_look = time.monotonic() + LOOK_S
        if (now := look()) == self._seen:
            return
        self._seen = now
        try:
            self._newest = read()
        except CertificateError as error:
            log.warning("certificate_not_taken", reason=str(error))
