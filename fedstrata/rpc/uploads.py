"""How long a server waits for what comes next of an upload: a sender that is alive and sends nothing, or next to
nothing, would hold its place for ever.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from fedstrata.errors import StalledError
from fedstrata.process.quoting import quoted
from fedstrata.process.sleeping import SLOWEST_BYTES_PER_S, payload_timeout_s
from fedstrata.tensors import CHUNK_BYTES

LATER_S = 10.0  # than a sender gives up by itself
SENDERS = ("child_id", "device_id", "home_id")  # what headers call who sends an upload


@dataclass(frozen=True)
class UploadWait:
    """The time that an upload may take in all: at first, and longer by what has come.

    That is as long as its sender's own deadline, of a chunk or of the server's largest payload, and ten seconds; and
    half as fast as deadlines allow for has to come what comes. So senders give up earlier by themselves.
    """

    first_s: float = payload_timeout_s(CHUNK_BYTES) + LATER_S
    least_bytes_per_s: float = SLOWEST_BYTES_PER_S / 2
    clock: Callable[[], float] = time.monotonic


UPLOAD_WAIT = UploadWait()


class Awaited:
    """The parts of one upload, where the time in which the server waits for them counts, and no other: not that in
    which it deals with one, holds it back for its link, or lets others have their turn. Holds none that it has given.
    """

    def __init__(self, parts: AsyncIterator[Any], wait: UploadWait, sender: str = "") -> None:
        """`sender` is who sends it; of a stream that begins with its header that says so."""
        self._parts = parts
        self._wait = wait
        self._sender = sender
        self._left_s = wait.first_s
        self._waited_s = 0.0
        self._come = 0

    def __aiter__(self) -> "Awaited":
        return self

    async def __anext__(self) -> Any:
        began = self._wait.clock()
        try:
            async with asyncio.timeout(self._left_s):
                part = await anext(self._parts)
        except TimeoutError:
            raise self._stalled(self._wait.clock() - began) from None
        waited_s, size = self._wait.clock() - began, _bytes_of(part)
        self._left_s += size / self._wait.least_bytes_per_s - waited_s
        if self._left_s < 0:
            raise self._stalled(waited_s)
        self._waited_s += waited_s
        self._come += size
        self._sender = self._sender or sender_of(part)
        return part

    def _stalled(self, waited_s: float) -> StalledError:
        whose = quoted(self._sender) if self._sender else "somebody"
        return StalledError(
            f"an upload of {whose} is given up: {self._come} bytes of it came in the "
            f"{self._waited_s + waited_s:.0f} s that they were waited for; try again, at "
            f"{self._wait.least_bytes_per_s / 1000:g} kB/s or more"
        )


def sender_of(part: Any) -> str:
    """Return the sender of an upload, by its header; an empty text if it has no header."""
    header = getattr(part, "header", None)
    return next((name for field in SENDERS if (name := getattr(header, field, ""))), "")


def _bytes_of(part: Any) -> int:
    """Return how many bytes of an upload a part brings: its data, or the whole part if its kind has other fields."""
    data = getattr(part, "data", None)
    if data is not None:
        return len(data)
    return part.ByteSize() if isinstance(part, Message) else 0
