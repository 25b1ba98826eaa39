"""Offline files of Weights & Biases, read with its own message types."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def messages(path: Path) -> Iterator[bytes]:
    """The messages in an offline file: a header of seven bytes, then LevelDB's log format in blocks of 32 KiB."""
    data, place, message = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := 2**15 - place % 2**15) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)  # kinds: 1 whole, 2 first, 3 middle, 4 last part
        message += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield message
            message = b""


def logged(path: Path) -> Iterator[dict[str, Any]]:
    """The rows in an offline file of wandb, without the columns that wandb adds."""
    from wandb.proto import wandb_internal_pb2

    for message in messages(path):
        record = wandb_internal_pb2.Record.FromString(message)
        if record.HasField("history"):
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            yield {key: value for key, value in items.items() if not key.startswith("_")}
