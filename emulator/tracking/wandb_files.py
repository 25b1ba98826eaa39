"""Read offline files of Weights & Biases, with its own message types."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from emulator.shipped.extras import needed

HEADER = struct.Struct("<IHB")  # of a part: checksum, length, kind
BLOCK = 2**15  # bytes, which no part crosses
WHOLE, LAST = 1, 4  # kinds of parts that end a message


def logged(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each logged row of an offline file: values by column name, without the columns that wandb adds."""
    records = needed("wandb.proto.wandb_internal_pb2")
    for message in _messages(path.read_bytes()):
        record = records.Record.FromString(message)
        if record.HasField("history"):
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            yield {key: value for key, value in items.items() if not key.startswith("_")}


def _messages(content: bytes) -> Iterator[bytes]:
    """Yield the messages in the content of a file. The content is seven bytes, then messages in the log format of
    LevelDB. If a message is cut, it and everything after it are left out.
    """
    place, message = 7, b""
    while place + HEADER.size <= len(content):
        if (left := BLOCK - place % BLOCK) < HEADER.size:
            place += left
            continue
        _, length, kind = HEADER.unpack_from(content, place)
        start, place = place + HEADER.size, place + HEADER.size + length
        if place > len(content):
            return
        message += content[start:place]
        if kind in (WHOLE, LAST):
            yield message
            message = b""
