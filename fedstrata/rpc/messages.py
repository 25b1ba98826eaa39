"""Convert Fedstrata's records to and from messages, field by field, with checked numbers."""

from collections.abc import Iterable, Mapping

from fedstrata.errors import PayloadError
from fedstrata.process.metrics import LinkKey
from fedstrata.v1 import rounds_pb2 as pb

MOST_MEASURED = 1 << 40  # number of examples of one device
MOST_COUNTED = 1 << 53  # numbers in rows, and bytes of one LPS; JSON readers keep such whole numbers exactly


def checked_number(value: float, least: float, most: float, said: str) -> float:
    """Check a number from a peer, and return it. If the number is out of range, raise PayloadError with a message that
    begins with `said`.

    NaN always raises the error. If `least` and `most` are finite, infinite numbers raise it, too.
    """
    if not least <= value <= most:
        raise PayloadError(f"{said} {value}; expected a finite number from {least:g} to {most:g}")
    return value


def link_bytes_to_proto(counts: Mapping[LinkKey, int]) -> list[pb.LinkBytes]:
    """Return counts of bytes as messages for a report."""
    return [
        pb.LinkBytes(link=key.link, direction=key.direction, kind=key.kind, end=key.end, bytes=count)
        for key, count in counts.items()
    ]


def link_bytes_from_proto(messages: Iterable[pb.LinkBytes]) -> dict[LinkKey, int]:
    """Return counts of bytes from the messages of a report."""
    return {
        LinkKey(link=message.link, direction=message.direction, kind=message.kind, end=message.end): message.bytes
        for message in messages
    }
