"""How many connections may wait to be accepted: gRPC lets as many as the system allows, 4,096 on Linux.

Each that has waited costs its server a handshake, whether anybody is left at its other end or not. A flood of
connections that is over would be worked off for seconds more; who comes to a line that is full tries again, by the
kernel's own means, a second later.
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
    """Let as many wait at a port of this process as there are children, and some, where its sockets can be found."""
    for listener in _listeners(port):
        listener.listen(AT_LEAST + children)


def _listeners(port: int) -> Iterator[socket.socket]:
    """This process's sockets that listen at a port, each open for as long as it is looked at."""
    with suppress(FileNotFoundError):
        for number in [int(found.name) for found in OWN_FILES.iterdir()]:
            with suppress(OSError):  # of the folder itself, which is closed by now; and of sockets of other kinds
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    with socket.socket(fileno=os.dup(number)) as found:
                        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and found.getsockname()[1] == port:
                            yield found
