"""The number of connections that may wait for acceptance: gRPC allows the system's maximum, 4,096 on Linux.

Each waiting connection costs its server a handshake, even if its peer has gone. After a flood of connections, the
server would need seconds for these handshakes. With a short line, the kernel of a rejected caller tries again a second
later.
"""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

OWN_FILES = Path("/dev/fd")
AT_LEAST = 128


def keep_short(port: int, children: int) -> None:
    """Limit the connections that may wait at a port of this process to the number of children and a few more, if its
    sockets are found.
    """
    for listener in _listeners(port):
        listener.listen(AT_LEAST + children)


def _listeners(port: int) -> Iterator[socket.socket]:
    """Yield this process's sockets that listen at a port. Each is open while the caller looks at it."""
    with suppress(FileNotFoundError):
        for number in [int(found.name) for found in OWN_FILES.iterdir()]:
            with suppress(OSError):  # of the folder itself, which is closed by now; and of sockets of other kinds
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    with socket.socket(fileno=os.dup(number)) as found:
                        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and found.getsockname()[1] == port:
                            yield found
