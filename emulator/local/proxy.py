"""Run a TCP proxy on a link. The proxy can cut and reset its connections on request."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from fedstrata.process.address import joined_address, loopback, split_address

READ_BYTES = 1 << 16


class LinkProxy:
    """Listen on a port, and forward its connections to one address. Bytes are forwarded in both directions."""

    def __init__(self) -> None:
        self._is_cut = False
        self._address: Callable[[], Awaitable[Mapping[str, str]]] | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._jobs: set[asyncio.Task[None]] = set()

    async def start(self, address: str | None = None) -> None:
        """Listen on a free port. `address` is the destination. If it is not known yet, `lead_to` sets it later."""
        if address is not None:
            self._address = _known(address)
        self._server = await asyncio.start_server(self._accept, loopback(), 0)

    @property
    def address(self) -> str:
        """The address on which the proxy listens."""
        if self._server is None:
            raise RuntimeError("start the proxy first")
        host, port = self._server.sockets[0].getsockname()[:2]
        return joined_address(host, port)

    def lead_to(self, address: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        """Set the destination to the address of a process. `address` waits until the process has reported its
        address.
        """
        self._address = address

    def cut(self) -> None:
        """Reset all connections. Also reset each new connection until `mend` is called."""
        self._is_cut = True
        self.reset()

    def mend(self) -> None:
        """Accept connections again."""
        self._is_cut = False

    def reset(self) -> None:
        """Reset all connections. New connections are accepted."""
        for writer in list(self._writers):
            _reset(writer)

    def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
        self.reset()
        for job in self._jobs:
            job.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut or self._address is None:
            _reset(writer)
            return
        host, port = split_address((await self._address())["grpc"])
        try:
            onward_reader, onward_writer = await asyncio.open_connection(host, port)
        except OSError:
            _reset(writer)
            return
        if self._is_cut:  # since this connection was accepted
            _reset(writer)
            _reset(onward_writer)
            return
        self._pump(reader, onward_writer, writer)
        self._pump(onward_reader, writer, onward_writer)

    def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, other: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        job = asyncio.create_task(self._pass_on(reader, writer, other))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, other: asyncio.StreamWriter
    ) -> None:
        """Forward the bytes of one direction until the sender ends it. Then close the connection in both directions."""
        try:
            await self.carry(reader, writer)
        except OSError:
            _reset(writer)
            _reset(other)
        finally:
            self._writers.discard(writer)
            for end in (writer, other):
                end.close()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy bytes from `reader` to `writer` until the end. If the receiver does not read, no further bytes are taken
        from the sender.
        """
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()


def _known(address: str) -> Callable[[], Awaitable[Mapping[str, str]]]:
    async def give() -> Mapping[str, str]:
        return {"grpc": address}

    return give


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection at once by a TCP reset."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if writer.transport is not None:
        writer.transport.abort()
