"""Limit how many connections may wait until a server accepts them. Without this, gRPC sets the system's maximum, 4,096
on Linux.

The server makes a handshake for each waiting connection, even if the peer has gone. After a flood of connections, these
handshakes would take seconds. With a low limit, the kernel takes no further connections, and the caller's kernel tries
again a second later.
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
    """Limit the connections that may wait at a port of this process to a few more than the number of children. If the
    port's sockets are not found, change nothing.
    """
    for listener in _listeners(port):
        listener.listen(AT_LEAST + children)


def _listeners(port: int) -> Iterator[socket.socket]:
    """Yield this process's sockets that listen at a port. Each socket is open only until the next one is requested."""
    with suppress(FileNotFoundError):
        for number in [int(found.name) for found in OWN_FILES.iterdir()]:
            with suppress(OSError):  # for the folder's own descriptor, now closed, and for other sockets
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    with socket.socket(fileno=os.dup(number)) as found:
                        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and found.getsockname()[1] == port:
                            yield found
