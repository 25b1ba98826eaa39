"""Network addresses as users write them."""

import re
import socket
from contextlib import closing
from functools import cache

from fedstrata.errors import AddressError
from fedstrata.process.quoting import quoted

PORT = re.compile("[0-9]{1,5}")
LOOPBACK = ("127.0.0.1", "::1")
EVERYWHERE = "::"  # all addresses, also of IPv4; on machines without IPv6, gRPC uses IPv4
LOOPBACK_S = 2.0  # longer than this machine takes to answer itself


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`. Raises AddressError for other texts."""
    host, separator, port = address.rpartition(":")
    if not separator or not PORT.fullmatch(port) or int(port) > 65535 or not _can_be_looked_up(host):
        raise AddressError(f"{quoted(address)} is not an address; write host:port, for instance 127.0.0.1:50051")
    return host.strip("[]"), int(port)


def _can_be_looked_up(host: str) -> bool:
    """Return whether a text may be the name or the address of a host. `socket` refuses other texts by a UnicodeError,
    for instance a name with an empty part.
    """
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def has_ipv6() -> bool:
    """Return whether this machine's kernel supports IPv6."""
    try:
        socket.socket(socket.AF_INET6).close()
    except OSError:
        return False
    return True


def numbered_address(address: str, number: int) -> str:
    """Return `host:port` for the process with this number. If the address ends in `+`, the number is added to the port.
    For example, `host:50060+` and number 2 give `host:50062`.

    Raises:
        AddressError: the text is not an address, or the port is too large.
    """
    if not address.endswith("+"):
        return joined_address(*split_address(address))
    host, first = split_address(address.removesuffix("+"))
    return joined_address(*split_address(joined_address(host, first + number)))


@cache
def loopback() -> str:
    """Return the address by which processes of this machine reach each other: IPv4 if available, otherwise IPv6.

    Raises:
        AddressError: the machine has no such address.
    """
    for host in LOOPBACK:
        if _answers(host):
            return host
    raise AddressError(f"neither {' nor '.join(LOOPBACK)} answers; bring the loopback interface up: ip link set lo up")


def any_port() -> str:
    """Return an address that only processes of this machine can reach. The kernel chooses the port."""
    return joined_address(loopback(), 0)


def joined_address(host: str, port: int) -> str:
    """Return `host:port`, or `[v6]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _answers(host: str) -> bool:
    """Return whether this machine can connect to its own port at this host."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with closing(socket.create_server((host, 0), family=family)) as server:
            socket.create_connection(server.getsockname()[:2], timeout=LOOPBACK_S).close()
    except OSError:
        return False
    return True
