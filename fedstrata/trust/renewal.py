"""When the files of a certificate have been replaced: looked at where they are used, so that nobody has to wait."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from fedstrata.errors import CertificateError
from fedstrata.process.logs import EventLog

LOOK_S = 1.0  # how often a folder is looked into by those who use what was in it
READ_AGAIN_S = 60.0  # after files that could not be used: a clock may be set by now, or the disk be there again
Seen = tuple[tuple[int, ...], ...]  # what tells one set of files from another
Files = TypeVar("Files")
log = EventLog("trust")


class Renewal(Generic[Files]):
    """What a folder held when it was last looked into, for all who use its files; from any thread."""

    def __init__(self, not_taken: str = "certificate_not_taken") -> None:
        """`not_taken` is the event of files that cannot be used."""
        self._not_taken = not_taken
        self._lock = threading.Lock()
        self._newest: Files | None = None
        self._seen: Seen | None = None  # None: of files that were in no folder, which are used as they are
        self._next_look = 0.0
        self._read_again = float("inf")  # when files that could not be used are read once more
        self._reason = ""  # why they could not

    def begin(self, files: Files, seen: Seen) -> None:
        """Note the files that were read first."""
        self._newest, self._seen = files, seen
        self._next_look = time.monotonic() + LOOK_S

    def newest(
        self, given: Files, look: Callable[[], Seen], read: Callable[[], Files], tell: Callable[[Files], None], *,
        at_once: bool,
    ) -> Files:  # fmt: skip
        """The newest files that could be used; `given` as long as none were read. `tell` is told of others than before.

        Files whose times or rights alone have changed, as kubelet changes them every minute, are the ones before.
        """
        if self._seen is None:
            return given
        if at_once or time.monotonic() >= self._next_look:
            with self._lock:
                self._look(look, read, tell)
        return self._newest or given

    def _look(self, look: Callable[[], Seen], read: Callable[[], Files], tell: Callable[[Files], None]) -> None:
        now = time.monotonic()
        self._next_look = now + LOOK_S
        if (seen := look()) == self._seen and now < self._read_again:
            return
        self._seen = seen
        try:
            found = read()
        except CertificateError as error:
            self._note(str(error))
        else:
            if found != self._newest or self._reason:
                self._newest = found
                tell(found)
            self._read_again, self._reason = float("inf"), ""

    def _note(self, reason: str) -> None:
        """Note why files cannot be used, and say so unless that was the reason already."""
        self._read_again = time.monotonic() + READ_AGAIN_S
        if reason != self._reason:
            self._reason = reason
            log.warning(self._not_taken, reason=reason)


def stamp(path: Path) -> tuple[int, ...]:
    """What tells one file of a path from another, without reading it; nothing where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
