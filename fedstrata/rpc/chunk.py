"""Payloads in gRPC messages, without the copies of the payload that protobuf would make.

A payload is sent in parts (`ModelPart`, `UpdatePart`), each of them one message. On the wire, a part with only `data`
is a tag, a length and the data. This module writes and reads such parts without protobuf. A payload that fits in one
part with its header is sent in the field `small`. This module also writes and reads this field without protobuf.
Protobuf handles everything else.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf.message_factory import GetMessageClass

LENGTH_DELIMITED = 2  # protobuf's wire type of bytes and messages
ALIGNMENT = 4  # bytes of an element of float32
LONGEST_VARINT = 5  # bytes, enough for the length of every message


class Chunk:
    """Hold a part that has only data. Readers use a `Chunk` like the protobuf message that it replaces."""

    __slots__ = ("data",)

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def WhichOneof(self, group: str) -> str:  # noqa: N802  # protobuf's name
        """Return "data", the name of the only field that the part has."""
        return "data"

    def HasField(self, name: str) -> bool:  # noqa: N802  # protobuf's name
        """Return whether the part has a field."""
        return name == "data"


class Whole:
    """Hold a part that has both a header and a small payload. Readers use `chunk` like a part that has only the payload
    as its data.
    """

    __slots__ = ("chunk", "header")
    data = b""  # empty, as in the protobuf message: the payload is in `chunk`

    def __init__(self, header: Any, small: memoryview) -> None:
        self.header = header
        self.chunk = Chunk(small)

    def WhichOneof(self, group: str) -> str:  # noqa: N802  # protobuf's name
        """Return "header". The payload, which is also in the part, is reached through `chunk`."""
        return "header"

    def HasField(self, name: str) -> bool:  # noqa: N802  # protobuf's name
        """Return whether the part has a field."""
        return name == "header"


def serialised_chunk(part: Any, data: bytes | memoryview) -> bytes:
    """Return a serialised message of the class `part` (UpdatePart or ModelPart) that has only data. The data are copied
    once.
    """
    return b"".join((_tag(part, "data"), _varint(len(data)), data))


def serialised_whole(part: Any, header: Any, small: bytes | memoryview) -> bytes:
    """Return a serialised message of the class `part`, with a header and a small payload. The payload is copied once.

    The payload begins at a multiple of four bytes, because its elements are then read faster. For this, the length of
    the header may be written with more bytes than necessary. Protobuf allows this.
    """
    head, tail = header.SerializeToString(), _tag(part, "small") + _varint(len(small))
    length = _varint(len(head))
    off_by = (1 + len(length) + len(head) + len(tail)) % ALIGNMENT
    if off_by and len(length) + ALIGNMENT - off_by <= LONGEST_VARINT:
        length = _varint(len(head), len(length) + ALIGNMENT - off_by)
    return b"".join((_tag(part, "header"), length, head, tail, small))


def part_parser(part: Any) -> Callable[[bytes], Any]:
    """Return a parser of messages of the class `part` (UpdatePart or ModelPart). If a message has the form of a `Chunk`
    or a `Whole`, the parser returns such an object without copying the payload.
    """
    data_tag, header_tag, small_tag = (_tag(part, name)[0] for name in ("data", "header", "small"))
    parse = part.FromString
    header_of = GetMessageClass(part.DESCRIPTOR.fields_by_name["header"].message_type).FromString

    def run(message: bytes) -> Any:
        first = message[0] if message else 0
        if first == data_tag:
            length, at = _read_varint(message, 1)
            if at + length == len(message):
                return Chunk(memoryview(message)[at:])
        elif first == header_tag:
            length, at = _read_varint(message, 1)
            end = at + length
            if at <= end < len(message) and message[end] == small_tag:
                length, begin = _read_varint(message, end + 1)
                if length and begin + length == len(message):
                    return Whole(header_of(message[at:end]), memoryview(message)[begin:])
        return _by_protobuf(parse(message))

    return run


def _by_protobuf(parsed: Any) -> Any:
    """Return the given part, which protobuf has parsed. If the part has a header and a small payload, return a `Whole`.

    Protobuf parses a part with a small payload if `run` in `part_parser` does not know its bytes. This can happen if
    the sender uses another serialiser, or writes the fields in another order.
    """
    if parsed.small and parsed.HasField("header"):
        header = type(parsed.header)()
        header.CopyFrom(parsed.header)  # a part of a message keeps the whole message, with its payload, in memory
        return Whole(header, memoryview(parsed.small))
    return parsed


@cache
def _tag(part: Any, field: str) -> bytes:
    """Return protobuf's tag of a field that has bytes or a message as its value. The number of the field must be below
    16.
    """
    return bytes([part.DESCRIPTOR.fields_by_name[field].number << 3 | LENGTH_DELIMITED])


def _varint(number: int, width: int = 1) -> bytes:
    """Return a number in protobuf's encoding, in at least `width` bytes."""
    groups: list[int] = []
    while number > 0x7F or len(groups) + 1 < width:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position after the number. If the position has no valid number, return
    -1, a length that no message has.
    """
    number = 0
    for shift, byte in enumerate(message[at : at + LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, at + shift + 1
    return -1, at
