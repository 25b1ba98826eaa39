"""A TLS channel that opens a new connection after the certificate of its process was renewed.

A channel of gRPC for Python cannot change its certificate and authorities (grpc/grpc#41779). So each renewal opens a
new gRPC channel for new calls. Open calls end on the gRPC channel on which they began.
"""

import asyncio
from contextlib import suppress
from functools import partialmethod
from typing import Any

import grpc

from fedstrata.errors import NotServedError
from fedstrata.process.logs import EventLog
from fedstrata.trust.names import Name
from fedstrata.trust.tls_files import TlsFiles

log = EventLog("rpc")
Options = tuple[tuple[str, Any], ...]


class _Connection:
    """Hold a gRPC channel with one certificate. When the channel is no longer needed, close it after its last open
    call.
    """

    def __init__(self, address: str, tls: TlsFiles, options: Options) -> None:
        self.tls = tls
        self.channel = grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)
        self._under_way = 0
        self._is_left = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Return False if the channel has begun to close, otherwise True."""
        return self._closing is None

    def carry(self, call: Any) -> Any:
        """Count a call as open until it ends, and return the call."""
        self._under_way += 1
        call.add_done_callback(self._note_end)
        return call

    def leave(self) -> None:
        """Close the channel as soon as it has no open calls."""
        self._is_left = True
        self._close_if_idle()

    def _note_end(self, _: Any) -> None:
        self._under_way -= 1
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._is_left and not self._under_way and self._closing is None:
            self._closing = asyncio.ensure_future(self.channel.close(None))


class _Call:
    """Call one RPC of a parent, always on the newest connection."""

    def __init__(self, channel: "SecureChannel", kind: str, words: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._channel, self._kind, self._words, self._options = channel, kind, words, options
        self._connection: _Connection | None = None
        self._call: Any = None

    def __call__(self, *words: Any, **options: Any) -> Any:
        connection = self._channel.newest()
        if connection is not self._connection:
            self._connection = connection
            self._call = getattr(connection.channel, self._kind)(*self._words, **self._options)
        return connection.carry(self._call(*words, **options))

    def connection(self) -> object:
        """Return the connection that a new call would use. After a renewal of the certificate, this is a new
        connection.
        """
        return self._channel.newest()


class SecureChannel(grpc.aio.Channel):
    """Connect to one parent with TLS. After this process's certificate was renewed, new calls use a new connection."""

    def __init__(self, address: str, tls: TlsFiles, parent: Name, options: Options = ()) -> None:
        self._address = address
        self._parent = parent
        self._options = (*options, *tls.channel_options(parent))
        self._connection = _Connection(address, tls, self._options)
        self._moved = asyncio.Event()  # set when a new connection replaces the present one
        self._left: list[_Connection] = []

    def newest(self) -> _Connection:
        """Return the connection for new calls. If the certificate was renewed, open a new connection first.

        Raises:
            NotServedError: this process's list of revoked names contains the parent.
        """
        tls = self._connection.tls.newest()
        if tls.revoked().revokes((self._parent.role,), self._parent.id):
            raise NotServedError(f"{self._parent} is in the list of revoked names of {tls.me}, so it gets no calls")
        if not tls.is_shown_as(self._connection.tls):
            self._move(tls)
        return self._connection

    def _move(self, tls: TlsFiles) -> None:
        """Open a new connection with the TLS files `tls`. Close the present connection as soon as it has no
        open calls.
        """
        before, self._connection = self._connection, _Connection(self._address, tls, self._options)
        self._left = [one for one in self._left if one.is_open]
        self._left.append(before)
        before.leave()
        self._moved.set()
        self._moved = asyncio.Event()
        log.info("connection_renewed")

    def _called(self, kind: str, *words: Any, **options: Any) -> Any:
        """Return a function that calls an RPC of the parent. Generated stubs of gRPC get such functions from their
        channel.
        """
        return _Call(self, kind, words, options)

    unary_unary: Any = partialmethod(_called, "unary_unary")
    unary_stream: Any = partialmethod(_called, "unary_stream")
    stream_unary: Any = partialmethod(_called, "stream_unary")
    stream_stream: Any = partialmethod(_called, "stream_stream")

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the newest connection."""
        return self.newest().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the present connection leaves the state `last_observed_state`, or a new connection replaces it."""
        changed = asyncio.ensure_future(self._connection.channel.wait_for_state_change(last_observed_state))
        moved = asyncio.ensure_future(self._moved.wait())
        try:
            await asyncio.wait({changed, moved}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            moved.cancel()
            changed.cancel()
            with suppress(asyncio.CancelledError, grpc.aio.UsageError):  # the connection was closed meanwhile
                await changed

    async def channel_ready(self) -> None:
        """Wait until the present connection is established."""
        await self._connection.channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """Close all connections."""
        for connection in (*self._left, self._connection):
            await connection.channel.close(grace)

    async def __aenter__(self) -> "SecureChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
