"""Chunks of a payload on their way through gRPC, without the copies that protobuf makes of their bytes.

A part that holds nothing but `data` is, on the wire, a tag, a length and the data: it is written and read as that.
Everything else goes by protobuf.
"""

from collections.abc import Callable
from typing import Any

LENGTH_DELIMITED = 2  # protobuf's wire type of bytes
LONGEST_VARINT = 5  # bytes; more than any message of ours can be long


class Chunk:
    """A part that holds data alone; to who reads it like the message that it stands for."""

    __slots__ = ("data",)

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def WhichOneof(self, group: str) -> str:  # noqa: N802  # protobuf's name
        """Which of the part's fields is there."""
        return "data"

    def HasField(self, name: str) -> bool:  # noqa: N802  # protobuf's name
        """Whether a field is there."""
        return name == "data"


def serialised_chunk(part: Any, data: bytes | memoryview) -> bytes:
    """A part of this kind (UpdatePart, ModelPart) with data alone, serialised; its bytes are copied once."""
    return b"".join((_tag(part), _varint(len(data)), data))


def chunk_parser(part: Any) -> Callable[[bytes], Any]:
    """What parses messages of this kind: a `Chunk` that looks into the message where data is all there is in it."""
    tag, parse = _tag(part), part.FromString

    def run(message: bytes) -> Any:
        if message[:1] == tag:
            length, at = _read_varint(message, 1)
            if at + length == len(message):
                return Chunk(memoryview(message)[at:])
        return parse(message)

    return run


def _tag(part: Any) -> bytes:
    """What stands before the field `data`, whose number is below 16."""
    return bytes([part.DESCRIPTOR.fields_by_name["data"].number << 3 | LENGTH_DELIMITED])


def _varint(number: int) -> bytes:
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number that begins at a place, and where it ends; a length that fits nothing if there is none."""
    number = 0
    for shift, byte in enumerate(message[at : at + LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, at + shift + 1
    return -1, at
