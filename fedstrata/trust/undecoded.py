"""Undecodable requests. gRPC would answer them itself, each with a traceback in the log."""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError


class Undecoded:
    """Represent an undecodable request, until it is known whether its sender may call at all."""


def or_undecoded(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a parser that returns an Undecoded for undecodable bytes."""

    def run(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return Undecoded()

    return run


def check_decoded(request: Any) -> None:
    """Refuse an undecodable request. Raises DecodeError."""
    if isinstance(request, Undecoded):
        raise DecodeError("bytes that are no message")
