"""The limits on a process's open files and connections, and how the process behaves when it reaches these limits."""

import errno
import resource
from collections.abc import Callable
from typing import TypeVar

from fedstrata.errors import ResourceError
from fedstrata.process.waiting import pass_time

Opened = TypeVar("Opened")
LEAST_FILES = 64  # a process opens about thirty files before the first connection
MOST_FILES = 1 << 16
OWN_FILES = 256  # descriptors that connections do not get: for state, logs, HTTP, and a process's own calls
MOST_CONNECTIONS = 1 << 14
OPEN_TRIES, OPEN_PAUSE_S = 75, 0.2  # together longer than a silent connection is kept open


def raise_limit() -> int:
    """Raise this process's limit on open files as far as its hard limit allows, to at most 65,536. Return the new
    limit.

    Raises:
        ResourceError: the limit is too low for the process to start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MOST_FILES:
        soft = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limit = MOST_FILES if soft == resource.RLIM_INFINITY else min(soft, MOST_FILES)
    if limit < LEAST_FILES:
        raise ResourceError(
            f"a process can open only {limit} files here; at least {LEAST_FILES} are needed; raise ulimit -n"
        )
    return limit


def connections_allowed() -> int:
    """Return how many connections a server may have at once. The server needs the remaining file descriptors for state,
    logs and its own calls.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, max(soft - OWN_FILES, soft // 2))


def when_there_is_room(open_one: Callable[[], Opened]) -> Opened:
    """Call a function that opens a file, and return its result. While too many files are open, try again for about 15
    s.

    Raises:
        OSError: the function failed for another reason, or too many files are still open after this time.
    """
    for _ in range(OPEN_TRIES):
        try:
            return open_one()
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
        pass_time(OPEN_PAUSE_S)
    return open_one()
