"""Calls to a parent. Channels count bytes and reconnect. Errors say whether another attempt can help."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

import grpc

from fedstrata.errors import (
    AddressError,
    BegunAgainError,
    DuplicateDeviceError,
    ExcludedError,
    FedstrataError,
    HandshakeError,
    NotAllowedError,
    NotMemberError,
    NotServedError,
    ParentAwayError,
    PayloadError,
    RunStoppedError,
    UnknownChildError,
    WrongRunError,
)
from fedstrata.process.address import split_address
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkMeter
from fedstrata.process.quoting import brief
from fedstrata.process.time_limits import PATIENCE_S, UPGRADE_S
from fedstrata.process.waiting import Backoff
from fedstrata.rpc.counting import CountingChannel
from fedstrata.rpc.execution import hearing
from fedstrata.rpc.server import ERROR_KEY, MAX_MESSAGE_BYTES
from fedstrata.trust.names import Name
from fedstrata.trust.security import Security
from fedstrata.trust.tls_files import GPS

Reply = TypeVar("Reply")
CallError = grpc.aio.AioRpcError  # error of a failed call; other subpackages use this name, not gRPC's
StatusCode = grpc.StatusCode
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also gRPC's time limit for a try, with its handshake
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A new pod has another address under the same name. With gRPC's own 30 seconds, its children find it later.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
# The parent is absent, restarting, or has ended this call. The same call may succeed later.
PASSING = frozenset({
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,  # the certificate is no longer valid; the folder may soon have another
})  # fmt: skip
TOO_LARGE = "larger than max"  # in gRPC's text about a message that is too large, so that a repeated call fails too
# gRPC's own status of a broken stream. An error in the parent's code has the same status, but also a name.
BROKEN = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN})
_REFUSALS = (
    WrongRunError, BegunAgainError, RunStoppedError, UnknownChildError, DuplicateDeviceError, PayloadError,
    ExcludedError, NotServedError, NotMemberError, NotAllowedError,
)  # fmt: skip
_BY_NAME: dict[str, type[FedstrataError]] = {error.__name__: error for error in _REFUSALS}
_BY_STATUS: dict[str, type[FedstrataError]] = {error.status: error for error in reversed(_REFUSALS)}


class Connection:
    """Connect this process to one parent. gRPC connects at the first call, and again whenever the connection is lost.

    `async with` gives the gRPC channel, and closes the connection at the end. Without `async with`, call `close`.
    """

    def __init__(self, address: str, security: Security, parent: Name = GPS) -> None:
        """Set the parent's `address` (host:port) and name. Raises AddressError if the address is malformed."""
        split_address(address)
        self.address = address
        self._security = security
        self._parent = parent
        self.channel = security.channel(address, parent, CHANNEL_OPTIONS)

    async def __aenter__(self) -> grpc.aio.Channel:
        return self.channel

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def counted(self, meter: LinkMeter) -> Any:
        """Return the channel in a wrapper that counts the bytes of all calls in `meter`. Generated stubs use the
        wrapper.
        """
        return hearing(CountingChannel(self.channel, meter))

    async def until_reached(self, log: EventLog) -> None:
        """Wait until this process is connected to the parent for the first time.

        Raises:
            HandshakeError: the parent answers, but no further try can succeed.
        """
        is_told = False
        while (state := self.channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                reason = await self._security.why_refused(self.address, self._parent)
                if reason is not None:
                    raise HandshakeError(reason)
                if not is_told:
                    log.info("parent_away", call="connect", address=self.address)
                is_told = True
            await self.channel.wait_for_state_change(state)

    async def close(self) -> None:
        """Close the connection. Calls that are under way fail."""
        await self.channel.close(None)


def is_passing(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the same call may succeed later."""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and TOO_LARGE in (error.details() or ""):
        return False
    return error.code() in PASSING or (error.code() in BROKEN and _error_name(error) is None)


def _error_name(error: grpc.aio.AioRpcError) -> str | None:
    """Return the name of Fedstrata's error with which the parent ended the call. For other errors, return None."""
    metadata: Any = error.trailing_metadata() or ()
    told = dict(tuple(metadata)).get(ERROR_KEY)
    return None if told is None else str(told)


def refusal(error: grpc.aio.AioRpcError) -> FedstrataError:
    """Return the exception of `fedstrata.errors` for a call that a parent refused. The exception has the parent's
    reason.
    """
    kind = _BY_NAME.get(_error_name(error) or "") or _BY_STATUS.get(error.code().name, AddressError)
    return kind(brief(error.details() or error.code().name))


async def call_until_answered(
    call: Callable[[], Awaitable[Reply]], log: EventLog, name: str, *, attempts: int | None = None
) -> Reply:
    """Make a call, and return the reply. While the parent is away, repeat the call after pauses. If the parent refuses
    the call, raise the refusal.

    After `attempts` tries without an answer, raise ParentAwayError.
    """
    backoff = Backoff()
    while True:
        try:
            reply = await call()
        except grpc.aio.AioRpcError as error:
            if not is_passing(error):
                raise refusal(error) from None
            if backoff.attempts == 0:
                is_told = error.code() is grpc.StatusCode.UNAUTHENTICATED
                why = {"reason": brief(error.details() or "")} if is_told else {}
                log.info("parent_away", call=name, status=error.code().name, **why)
            if attempts is not None and backoff.attempts + 1 >= attempts:
                raise ParentAwayError(
                    f"{name}: no answer ({error.details()}); check the address, and whether the server runs"
                ) from None
        else:
            if backoff.attempts:
                log.info("answered_at_last", call=name, tries=backoff.attempts + 1)
            return reply
        await backoff.pause()


async def ask(stub: Any, name: str, request: Any, log: EventLog) -> Any:
    """Make a small call, and return the reply. Repeat the call while the parent is away. If the parent refuses the
    call, raise the refusal.
    """
    call = getattr(stub, name)
    return await call_until_answered(lambda: call(request, timeout=PATIENCE_S, wait_for_ready=True), log, name)


async def call_through_upgrade(call: Callable[[], Awaitable[Reply]], log: EventLog, name: str) -> Reply:
    """Make a call like `call_until_answered`.

    In a pod, also repeat the call while the parent still runs another experiment, because the parent is not upgraded
    yet. This wait has a limit.
    """
    loop, backoff = asyncio.get_running_loop(), Backoff()
    give_up_at = loop.time() + (UPGRADE_S if os.environ.get("FEDSTRATA_POD_NAME") else 0.0)
    while True:
        try:
            return await call_until_answered(call, log, name)
        except WrongRunError as error:
            if loop.time() >= give_up_at:
                raise
            if backoff.attempts == 0:
                log.warning("parent_has_another_run", call=name, reason=str(error))
        await backoff.pause()
