"""Requests that cannot be decoded. Without this module gRPC would answer such requests, each with a traceback in the
log.
"""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError


class Undecoded:
    """Represent a request that cannot be decoded, until it is known whether its sender may make calls."""


def or_undecoded(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a parser that returns an `Undecoded` if the bytes cannot be decoded."""

    def run(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return Undecoded()

    return run


def check_decoded(request: Any) -> None:
    """Raise DecodeError for a request that cannot be decoded."""
    if isinstance(request, Undecoded):
        raise DecodeError("bytes that are no message")
