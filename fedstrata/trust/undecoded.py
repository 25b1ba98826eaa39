"""Requests that cannot be decoded. Without this module, gRPC itself would answer each such request, and would write a
traceback to the log.
"""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError


class Undecoded:
    """Represent a request that cannot be decoded. The server refuses every such request. But it first checks whether
    the sender may make calls at all.
    """


def or_undecoded(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a parser that calls `parse`. If the bytes cannot be decoded, the parser returns an `Undecoded`."""

    def run(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return Undecoded()

    return run


def check_decoded(request: Any) -> None:
    """Check that a request could be decoded. Raises DecodeError if it could not."""
    if isinstance(request, Undecoded):
        raise DecodeError("the bytes are not a message")
