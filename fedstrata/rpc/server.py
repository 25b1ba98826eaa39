"""Start a gRPC server with limits on messages, health checks, reflection, and one table of errors."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from inspect import isasyncgenfunction
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from fedstrata.errors import (
    AddressError,
    FedstrataError,
    NotServedError,
    OutdatedError,
    PayloadError,
    StalledError,
    TooManyCallsError,
)
from fedstrata.process.address import joined_address, split_address
from fedstrata.process.descriptors import connections_allowed
from fedstrata.process.heap import keep_for_chunks
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkMeter
from fedstrata.process.quoting import brief
from fedstrata.process.time_limits import PATIENCE_S
from fedstrata.rpc.counting import CountingServer
from fedstrata.rpc.stream import Parts
from fedstrata.rpc.upload_limit import UPLOAD_WAIT, Awaited, UploadWait
from fedstrata.rpc.waiting_line import keep_short
from fedstrata.tensors import CHUNK_BYTES, SMALL_BYTES
from fedstrata.trust.guard import KINDS, Context, Membership, NoMembers
from fedstrata.trust.security import Security
from fedstrata.trust.undecoded import check_decoded

# The largest message is a chunk with its header. gRPC refuses a larger message before it is read.
MAX_MESSAGE_BYTES = CHUNK_BYTES + (64 << 10)
# Bytes that a child may send before the server reads them. With small payloads, gRPC may raise this by its estimate of
# the link, because a child has no more to send. With larger payloads, gRPC could then hold many megabytes per child.
LOOKAHEAD_BYTES = 64 << 10
HEADER_BYTES = 32 << 10
# Largest metadata of a call. Fedstrata's calls need a few hundred bytes; gRPC's default is 16 KiB for each stream.
METADATA_BYTES = 8 << 10
# Read buffer of a connection. By default it grows with the received bytes, to a megabyte or more per connection.
READ_BUFFER_BYTES = 128 << 10
# Time in which a new connection must show that it speaks HTTP/2. A silent connection would keep a file descriptor.
GREETING_S = 10.0
# Time after which a connection without calls is closed. Sessions and held calls keep their connections.
IDLE_S = 60.0
# Limits of calls that wait for the server, in addition to two per child. Above the first limit gRPC cancels some calls,
# and above the second all. It also cancels calls that wait too long. Cancelled callers call again, which makes a slow
# server slower. So the limits are high.
FEW_PENDING, MANY_PENDING = 1_000, 3_000
# Open calls per connection: per child a session and one other call, and spare calls for programs that watch the run.
STREAMS_OF_A_CHILD, SPARE_STREAMS, MANY_CHILDREN = 2, 128, 1024
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.experimental.tcp_max_read_buffer_size", READ_BUFFER_BYTES),
)
ERROR_KEY = "fedstrata-error"  # key of a reply's metadata with the error's class, because errors share statuses
log = EventLog("rpc")

LINES_A_MINUTE, MINUTE_S = 30, 60.0


class RefusalLines:
    """Limit the log lines about refused calls, per method and status. Otherwise one caller could push all other lines
    out of the log.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._written: dict[tuple[str, str], tuple[float, int]] = {}  # start of a minute, and the lines since then

    def has_room(self, method: str, status: str) -> bool:
        """Return whether the log may get one more line about this method and status. If the lines of this minute are
        used up, log this once.
        """
        now = self._clock()
        began, lines = self._written.get((method, status), (now, 0))
        if now - began >= MINUTE_S:
            began, lines = now, 0
        self._written[method, status] = began, lines + 1
        if lines == LINES_A_MINUTE:
            log.warning("refusals_not_logged", method=method, status=status, for_s=MINUTE_S - (now - began))
        return lines < LINES_A_MINUTE


class ErrorTable(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    """Answer a FedstrataError with its status and its reason. Answer any other error with INTERNAL, and log its
    traceback.
    """

    def __init__(self, *, is_guarded: bool, uploads: UploadWait, refused: Callable[[str], None]) -> None:
        """Set `is_guarded`, which says whether the server has a guard. A guard identifies the sender of a message, and
        then refuses the message if its bytes cannot be decoded. Without a guard, this object refuses such messages.

        `uploads` limits the wait for uploads. `refused` receives the reason for each upload that the server ended.
        """
        self._is_guarded = is_guarded
        self._uploads = uploads
        self._refused = refused
        self._lines = RefusalLines()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """Wrap the handler of a call."""
        handler = await continuation(details)
        if handler is None:
            return None
        kind = next(kind for kind in KINDS if getattr(handler, kind))
        received = {"stream_unary": self._upload, "stream_stream": _parts}.get(kind, self._message)
        return handler._replace(**{kind: self._wrapped(getattr(handler, kind), received, details.method)})

    def _wrapped(self, behaviour: Any, received: Callable[[Any, Context], Any], method: str) -> Any:
        """Return a handler that lets `behaviour` handle a call, and answers its errors. `received` converts the request
        from gRPC into the request that `behaviour` takes.
        """
        if isasyncgenfunction(behaviour):

            async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
                try:
                    async for reply in behaviour(received(request, context), context):
                        yield reply
                except Exception as error:
                    await self._abort(context, error, method)

            return stream

        async def run(request: Any, context: Context) -> Any:
            try:
                return await behaviour(received(request, context), context)
            except Exception as error:
                await self._abort(context, error, method)

        return run

    def _message(self, request: Any, context: Context) -> Any:
        if not self._is_guarded:
            check_decoded(request)
        return request

    def _upload(self, requests: Any, context: Context) -> Awaited:
        return Awaited(Parts(context), self._uploads)

    async def _abort(self, context: Context, error: Exception, method: str) -> None:
        if isinstance(error, StalledError):
            self._refused("stalled")
        await _abort(context, error, method, self._lines)


def _parts(requests: Any, context: Context) -> Parts:
    return Parts(context)


async def _abort(context: Context, error: Exception, method: str, lines: RefusalLines) -> None:
    if isinstance(error, DecodeError):
        error = PayloadError(f"the bytes are not a message of {method}; run the same version at caller and server")
    if isinstance(error, FedstrataError):
        reason = brief(str(error))
        # The code that raises the first two logs them once a minute. The third is no fault: a child gets a new parent.
        is_told = isinstance(error, TooManyCallsError | OutdatedError | NotServedError)
        tell = log.debug if is_told or not lines.has_room(method, error.status) else log.warning
        # The traceback keeps the caller's message in memory, and an abort lasts until its reply is sent.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        tell("call_refused", method=method, reason=reason, status=error.status)
        await context.abort(
            grpc.StatusCode[error.status], reason, trailing_metadata=((ERROR_KEY, type(error).__name__),)
        )
    if isinstance(error, grpc.aio.AbortError | grpc.aio.BaseError | grpc.RpcError):
        raise error
    log.exception("call_failed", method=method)
    await context.abort(
        grpc.StatusCode.INTERNAL,
        "the server has failed with an internal error; its log has the traceback",
        trailing_metadata=((ERROR_KEY, type(error).__name__),),
    )


def sent_ahead(payload_bytes: int) -> tuple[tuple[str, int], ...]:
    """Return the options that limit how many bytes a child may send before the server reads them."""
    if 0 < payload_bytes <= SMALL_BYTES:
        return (("grpc.http2.lookahead_bytes", max(LOOKAHEAD_BYTES, payload_bytes + HEADER_BYTES)),)
    return (("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES), ("grpc.http2.bdp_probe", 0))


def bounds(connections: int, children: int) -> tuple[tuple[str, int], ...]:
    """Return the options that limit the connections and calls of peers.

    A connection above the limit is closed at once. Each connection has a limit of open calls. Further calls wait until
    others end. One process may run all children over one connection, so this limit allows the calls of all children.
    """
    return (
        ("grpc.max_concurrent_streams", STREAMS_OF_A_CHILD * children + SPARE_STREAMS),
        ("grpc.server.max_pending_requests", STREAMS_OF_A_CHILD * children + FEW_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", STREAMS_OF_A_CHILD * children + MANY_PENDING),
        ("grpc.server_max_unrequested_time_in_server", int(PATIENCE_S)),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", int(1000 * GREETING_S)),
        ("grpc.max_connection_idle_ms", int(1000 * IDLE_S)),
    )


class RpcServer:
    """Run one gRPC server with health checks. All services report SERVING only after `set_ready(True)`."""

    def __init__(
        self,
        meter: LinkMeter,
        *,
        security: Security,
        payload_bytes: int = 0,
        children: int = MANY_CHILDREN,
        membership: Membership | None = None,
        uploads: UploadWait = UPLOAD_WAIT,
        refused: Callable[[str], None] = lambda reason: None,
        more: Sequence[Any] = (),
    ) -> None:
        """Create a server. `payload_bytes` is the size of the largest payload that a child sends. If the size is
        unknown, it is 0.

        `children` is the largest number of children. `security` decides which callers the server accepts. `membership`
        says which callers belong to which clusters; without it, no caller belongs to any. `uploads` limits the wait for
        an upload. `refused` receives the reason for each refused call, and for each upload that the server ended.
        `more` has further interceptors.
        """
        keep_for_chunks()
        self._security = security
        self._children = children
        options = (*SERVER_OPTIONS, *bounds(connections_allowed(), children), *sent_ahead(payload_bytes))
        guards = security.guards(membership or NoMembers(), refused, children)
        interceptors = [ErrorTable(is_guarded=bool(guards), uploads=uploads, refused=refused), *guards, *more]
        self._server = grpc.aio.server(interceptors=interceptors, options=options)
        self._counting = CountingServer(self._server, meter)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._names: list[str] = []
        self.is_ready = False
        self.address = ""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._counting)

    def add(self, register: Callable[[Any, Any], None], servicer: Any, name: str) -> None:
        """Add a service, by its generated `add_…_to_server` function and its full name."""
        register(servicer, self._counting)
        self._names.append(name)

    async def start(self, address: str) -> None:
        """Bind the address and serve calls, but report the services as not ready. Raises AddressError if the address
        cannot be bound.
        """
        host, _ = split_address(address)
        reflection.enable_server_reflection([*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server)
        for name in ("", *self._names):
            await self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
        try:
            port = self._security.listen(self._server, address)
        except RuntimeError:
            port = 0
        if not port:
            raise AddressError(
                f"cannot listen on {address}: it is in use, or not an address of this machine; choose another"
            )
        await self._server.start()
        keep_short(port, self._children)
        self.address = joined_address(host, port)

    async def set_ready(self, is_ready: bool = True) -> None:
        """Tell health checks whether the server can serve calls now."""
        self.is_ready = is_ready
        status = health_pb2.HealthCheckResponse.SERVING if is_ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, grace_s: float = 1.0) -> None:
        """Refuse new calls, and end open calls after `grace_s` seconds."""
        await self._server.stop(grace_s)
