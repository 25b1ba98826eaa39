"""A proxy on a link that delays, limits, slices, counts and half-closes what goes through."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from emulator.local.proxy import READ_BYTES, LinkProxy
from fedstrata.links.tier_links import Line
from fedstrata.process.waiting import until_ns

UNDER_WAY = 64  # reads that have left a link and have not arrived


class BadLink(LinkProxy):
    """A proxy with a rate and a latency; `on_bytes` is called with all that has gone through."""

    def __init__(self) -> None:
        super().__init__()
        self.rate: int | None = None  # bits a second in each direction of each connection; None: as fast as it goes
        self.latency_ns = 0
        self.slice_bytes = READ_BYTES  # passed on at a time
        self.passed_bytes = 0
        self.on_bytes: Callable[[int], None] = lambda total: None

    def half_close(self) -> None:
        """End the sending side of all connections, as if both ends had said that they are done."""
        for writer in list(self._writers):
            with suppress(OSError, RuntimeError):
                writer.write_eof()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(UNDER_WAY)
        is_broken = False
        try:
            async with asyncio.TaskGroup() as jobs:
                jobs.create_task(self._depart(reader, under_way))
                jobs.create_task(self._arrive(under_way, writer))
        except* OSError:
            is_broken = True
        if is_broken:
            raise ConnectionResetError

    async def _depart(self, reader: asyncio.StreamReader, under_way: "asyncio.Queue[tuple[int, bytes]]") -> None:
        """Read no faster than the link carries: whoever sends is held back."""
        line = Line(None)
        while data := await reader.read(self.slice_bytes):
            line.rate = self.rate
            left_ns = line.carry(time.monotonic_ns(), 8 * len(data))
            await until_ns(left_ns)
            await under_way.put((left_ns + self.latency_ns, data))
        await under_way.put((0, b""))

    async def _arrive(self, under_way: "asyncio.Queue[tuple[int, bytes]]", writer: asyncio.StreamWriter) -> None:
        """Write what has left the link when its latency is over; the next is under way meanwhile."""
        while True:
            at_ns, data = await under_way.get()
            if not data:
                return
            await until_ns(at_ns)
            writer.write(data)
            await writer.drain()
            self.passed_bytes += len(data)
            self.on_bytes(self.passed_bytes)
