"""Addresses as users write them."""

from fedstrata.errors import AddressError


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`. Raises AddressError for anything else."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535 or not host:
        raise AddressError(f"{address!r} is not an address; write host:port, for instance 127.0.0.1:50051")
    return host.strip("[]"), int(port)
