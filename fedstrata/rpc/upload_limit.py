"""A limit on the time that a server waits for the parts of an upload. Without a limit, a very slow sender would occupy
the server for ever.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from fedstrata.errors import StalledError
from fedstrata.process.quoting import quoted
from fedstrata.process.time_limits import SLOWEST_BYTES_PER_S, payload_timeout_s
from fedstrata.tensors import CHUNK_BYTES

LATER_S = 10.0  # a server waits this much longer than the sender, so that the sender gives up first
SENDERS = ("child_id", "device_id", "home_id")  # fields of headers that can name the sender of an upload


@dataclass(frozen=True)
class UploadWait:
    """Hold the total time that a server waits for the parts of an upload: an initial time, and more time for each
    received byte.

    The initial time is the deadline that a sender sets for one chunk, plus ten seconds. A server that knows its largest
    payload uses the deadline for this payload instead of one chunk (`upload_wait`). A sender's deadline assumes twice
    the rate `least_bytes_per_s`, so the sender gives up earlier than the server.
    """

    first_s: float = payload_timeout_s(CHUNK_BYTES) + LATER_S
    least_bytes_per_s: float = SLOWEST_BYTES_PER_S / 2
    clock: Callable[[], float] = time.monotonic


UPLOAD_WAIT = UploadWait()


class Awaited:
    """Yield the parts of one upload, and limit how long the server waits for them. The limit does not include the time
    in which the server processes a part, delays a part for its link, or serves other senders. This object keeps no
    part.
    """

    def __init__(self, parts: AsyncIterator[Any], wait: UploadWait, sender: str = "") -> None:
        """Set `sender`, the id of the sender. If it is empty, the header of the stream names the sender."""
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
        whose = quoted(self._sender) if self._sender else "an unknown sender"
        return StalledError(
            f"an upload of {whose} is too slow and was ended: {self._come} bytes came while the server waited for "
            f"{self._waited_s + waited_s:.0f} s; try again, with {self._wait.least_bytes_per_s / 1000:g} kB/s or more"
        )


def sender_of(part: Any) -> str:
    """Return the id of an upload's sender, from the header of the upload. If the part has no header, return an empty
    text.
    """
    header = getattr(part, "header", None)
    return next((name for field in SENDERS if (name := getattr(header, field, ""))), "")


def _bytes_of(part: Any) -> int:
    """Return how many bytes a part adds to an upload. These are the bytes of its data or, for a part without data, of
    the whole part.
    """
    data = getattr(part, "data", None)
    if data is not None:
        return len(data)
    return part.ByteSize() if isinstance(part, Message) else 0
