"""A port of this machine that a test's servers come and go at, and nobody else gets meanwhile."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_address() -> Iterator[str]:
    """An address at which nobody listens but who is told of it.

    The socket is bound and does not listen: connections are refused, port 0 of others is another port, and a server
    that lets addresses be used again, as gRPC's do, can listen here.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{keeper.getsockname()[1]}"
