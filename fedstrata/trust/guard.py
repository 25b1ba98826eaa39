"""The guard of a server. It accepts a call only if the table of calls (`fedstrata.trust.call_table`) allows the call
for the caller's certificate.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from inspect import isasyncgenfunction
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from fedstrata.errors import (
    CertificateError,
    NotAllowedError,
    NotMemberError,
    OutdatedError,
    PayloadError,
    TooManyCallsError,
)
from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import quoted
from fedstrata.trust.call_table import MOST_ASKED_BYTES, TABLE, Claim, Rule
from fedstrata.trust.names import Peer, Role
from fedstrata.trust.rate_limits import SAID_AGAIN_S, Shares
from fedstrata.trust.tls_files import TlsFiles
from fedstrata.trust.undecoded import check_decoded

Context = grpc.aio.ServicerContext[Any, Any]
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")  # kinds of calls, by request and reply
TLS_1_3 = b"TLSv1.3"
CALLERS_REMEMBERED = 4096
LOOK_S = 2.0  # time between two checks of the callers with open calls
RECENT_S = 10.0  # a caller counts as shut out for this time after a refusal; callers try again every two seconds
REFUSED_REMEMBERED = 1024
log = EventLog("trust")


class Membership(Protocol):
    """Define how a guard asks its server which callers belong to which clusters."""

    async def belongs(self, peer: Peer, claim: Claim) -> bool:
        """Return whether a caller belongs to the cluster that its message names."""


class NoMembers:
    """Refuse every caller that claims to belong to a cluster, because the server has no clusters."""

    async def belongs(self, peer: Peer, claim: Claim) -> bool:
        return False


@dataclass(frozen=True)
class Caller:
    """Identify a caller: the names in its certificate, and the certificate itself."""

    peer: Peer
    chain: bytes  # in PEM: the certificate, then further certificates that the caller has sent


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    """Refuse calls that the caller may not make, and messages of streams that the caller may not send. Count refusals
    by reason.
    """

    def __init__(
        self, tls: TlsFiles, membership: Membership, refused: Callable[[str], None], *, shares: Shares,
        outdated: "Outdated", look_every_s: float = LOOK_S, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """Set `tls`, the server's own files, and `refused`, a function that receives the reason of each refusal.

        `shares` limits the calls of each identity. `outdated` remembers callers with outdated certificates. Every
        `look_every_s` seconds, the guard checks whether callers with open calls were revoked. `clock` returns seconds
        since 1970.
        """
        self._tls = tls
        self.shares = shares
        self._membership = membership
        self.refused = refused
        self._clock = clock
        self._outdated = outdated
        self.lookout = Lookout(lambda caller: tls.revoked().why(caller.peer) is None, self._check_valid, look_every_s)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """Return the handler of a call, wrapped in the checks of this guard."""
        handler = await continuation(details)
        if handler is None:
            return None
        kind = next(kind for kind in KINDS if getattr(handler, kind))
        guarded = _guarded(getattr(handler, kind), _Check(self, details.method, is_stream=handler.request_streaming))
        as_stream = f"stream_{kind.partition('_')[2]}"
        return handler._replace(**{"request_streaming": True, kind: None, as_stream: guarded})

    def caller(self, context: Context, method: str, rule: Rule | None) -> Caller:
        """Return the caller of an RPC, after a check of its certificate and its role.

        Raises:
            NotAllowedError: the caller may not call this RPC, or is revoked.
            OutdatedError: the caller's certificate is no longer valid.
        """
        auth = context.auth_context()
        try:
            peer = _named_by(tuple(auth.get("peer_uri", ())))
        except CertificateError as error:
            raise self.refusal("certificate", str(error)) from None
        if list(auth.get("ssl_tls_version", ())) != [TLS_1_3]:
            raise self.refusal("tls", f"{peer} does not speak TLS 1.3; update its TLS library")
        if peer.domain != self._tls.me.domain:
            raise self.refusal(
                "run", f"{peer} belongs to run {quoted(peer.domain)}, but this is {quoted(self._tls.me.domain)}"
            )
        caller = Caller(peer, b"".join((*auth.get("x509_pem_cert", ()), *auth.get("x509_pem_cert_chain", ()))))
        self.check_sent(caller)
        if rule is None or not any(peer.is_a(role) for role in rule.roles):
            allowed = " or ".join(rule.roles) if rule else "nobody"
            raise self.refusal("role", f"{peer} may not call {method.rpartition('/')[2]}; allowed: {allowed}")
        return caller

    def check_sent(self, caller: Caller) -> None:
        """Check the caller's certificate, at the beginning of a call and before each reply.

        Raises:
            NotAllowedError: the caller is revoked.
            OutdatedError: the caller's certificate is no longer valid.
        """
        self._check_valid(caller)
        self._check_outdated(caller)

    def _check_valid(self, caller: Caller) -> None:
        if (why := self._tls.revoked().why(caller.peer)) is not None:
            raise self.refusal("revoked", f"{why}; ask the operator of this run for a new certificate")

    def _check_outdated(self, caller: Caller) -> None:
        """Check that a certificate, which was valid when its connection began, is still valid.

        Raises:
            OutdatedError: the certificate has expired, or its authority is no longer trusted. The caller may try again
                with a newer certificate.
        """
        try:
            why = self._tls.newest().why_outdated(caller.chain, self._clock())
        except CertificateError as error:
            raise self.refusal("certificate", str(error)) from None
        if why is not None:
            self.refused("outdated")
            self._outdated.note(caller.peer, why)
            raise OutdatedError(
                f"the certificate of {caller.peer} {why}; renew it with fedstrata certs renew, and the process uses it "
                "without a restart"
            )

    async def check(self, caller: Caller, method: str, rule: Rule, message: Any) -> None:
        """Check the senders that a message states, and the caller's certificate.

        Raises:
            NotAllowedError: the caller or a stated sender is revoked, or a stated sender is not in the caller's
                certificate.
            NotMemberError: the caller does not belong to the cluster that the message names.
            OutdatedError: the caller's certificate has expired, or its authority is no longer trusted.
        """
        self._check_valid(caller)
        peer = caller.peer
        claims = tuple(rule.claims(message)) if rule.claims else ()
        if claims:
            self._check_outdated(caller)
        for claim in claims:
            if claim.id == "":
                raise self.refusal("identity", f"the message of {peer} does not name its sender")
            if claim.id and self._tls.revoked().revokes(rule.roles, claim.id):
                raise self.refusal(
                    "revoked", f"{quoted(claim.id)} is revoked; ask the operator of this run for a new certificate"
                )
            if claim.id and not any(peer.is_(role, claim.id) for role in rule.roles):
                call = method.rpartition("/")[2]
                raise self.refusal("identity", f"{peer} may not call {call} in the name of {quoted(claim.id)}")
            if rule.is_of_cluster and not await self._membership.belongs(peer, claim):
                self.refused("cluster")
                who = f"{quoted(claim.id)} of {peer}" if claim.id else str(peer)
                raise NotMemberError(f"{who} does not belong to cluster {quoted(claim.home_id or '')} here")

    def refusal(self, reason: str, text: str) -> NotAllowedError:
        """Count a refusal by its reason, and return the error that the caller receives."""
        self.refused(reason)
        return NotAllowedError(text)


class Outdated:
    """Remember the peers that were recently refused because their certificate has expired or its authority is no longer
    trusted.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._refused_at: OrderedDict[Peer, float] = OrderedDict()
        self._said_at: dict[Peer, float] = {}

    def note(self, peer: Peer, why: str) -> None:
        """Note that a peer is refused now. Each peer appears in the log at most once per minute."""
        now = self._clock()
        self._refused_at[peer] = now
        self._refused_at.move_to_end(peer)
        if len(self._refused_at) > REFUSED_REMEMBERED:
            oldest, _ = self._refused_at.popitem(last=False)
            self._said_at.pop(oldest, None)
        if now - self._said_at.get(peer, float("-inf")) >= SAID_AGAIN_S:
            self._said_at[peer] = now
            log.warning("certificate_outdated", peer=str(peer), reason=why)

    def shuts_out(self, role: Role, device_or_lps_id: str) -> bool:
        """Return whether a peer with this id was refused recently. The peer may call again with a new certificate."""
        since = self._clock() - RECENT_S
        return any(at >= since and peer.is_(role, device_or_lps_id) for peer, at in self._refused_at.items())


class Lookout:
    """Check at intervals whether callers may continue their open calls, and abort the calls of callers that may not.
    Without open calls, do nothing.
    """

    def __init__(
        self, may_continue: Callable[[Caller], bool], check: Callable[[Caller], None], every_s: float = LOOK_S
    ) -> None:
        """Set two functions. `may_continue` returns whether a caller may continue its open calls. If the caller may
        not, `check` raises an error with the reason.
        """
        self._may_continue = may_continue
        self._check = check
        self._every_s = every_s
        self._under_way: dict[asyncio.Timeout, Caller] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def over(self, who: Caller) -> AsyncIterator[None]:
        """Run a block during an open call of the caller `who`. If the caller may not continue, abort the block,
        wherever it waits.

        Raises:
            FedstrataError: the error that `check` raises.
            OutdatedError: the block was aborted, but `check` raises no error, because the caller is accepted again by
                now. A new call may succeed.
        """
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._under_way[limit] = who
                self._look_later()
                try:
                    yield
                finally:
                    del self._under_way[limit]
        except TimeoutError:
            if not limit.expired():
                raise
            self._check(who)
            raise OutdatedError("the certificate of the caller was not valid a moment ago; try again") from None

    def _look_later(self) -> None:
        if self._timer is None and self._under_way:
            self._timer = asyncio.get_running_loop().call_later(self._every_s, self._look)

    def _look(self) -> None:
        self._timer = None
        refused = {who for who in set(self._under_way.values()) if not self._may_continue(who)}
        for limit, who in self._under_way.items():
            if who in refused and not limit.expired():
                limit.reschedule(0.0)
        self._look_later()


class _Check:
    """Check all calls of one RPC at a server: who the caller is, whether the rule allows the call, and its size."""

    def __init__(self, guard: Guard, method: str, *, is_stream: bool) -> None:
        """`is_stream` says whether callers send a stream of messages, not a single message."""
        self._guard = guard
        self._method = method
        self._is_stream = is_stream
        self._rule = TABLE.get(method)
        self.over = guard.lookout.over

    @contextmanager
    def caller(self, context: Context) -> Iterator[Caller]:
        """Check the caller, and count its call as open while the block runs. Yield the caller. Raises TooManyCallsError
        if the caller makes more calls than one identity may make.
        """
        caller = self._guard.caller(context, self._method, self._rule)
        try:
            with self._guard.shares.call(caller.peer):
                yield caller
        except TooManyCallsError:
            self._guard.refused("share")
            raise

    async def request(self, caller: Caller, messages: AsyncIterator[Any]) -> Any:
        """Return what the handler receives: the only message of a call, or an iterator over the messages of a stream.

        Raises:
            DecodeError: no message comes, or the message cannot be decoded.
            PayloadError: the message is larger than any request.
        """
        if self._is_stream:
            return self._each(caller, messages)
        message = await self._first(caller, messages)
        if message is None:
            raise DecodeError("the call has no message")
        check_decoded(message)
        most_bytes = self._rule.most_bytes if self._rule else MOST_ASKED_BYTES
        if (size := message.ByteSize()) > most_bytes:  # checked before the message waits for other checks
            raise PayloadError(f"the message has {size} bytes; at most {most_bytes} are allowed")
        await self._check(caller, message)
        return message

    async def _first(self, caller: Caller, messages: AsyncIterator[Any]) -> Any:
        async with self._guard.shares.reading(caller.peer):
            return await anext(aiter(messages), None)

    async def _each(self, caller: Caller, messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield the messages of a stream. Check each message when the handler reads it. This generator keeps no message
        while the handler waits: that would need a chunk of memory per waiting child.
        """
        held = [await self._first(caller, messages)]
        while held[0] is not None:
            await self._check(caller, held[0])
            yield held.pop()
            held.append(await anext(messages, None))

    async def replies(self, caller: Caller, replies: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """Yield a handler's replies. Before each reply, check that the caller's certificate is still valid."""
        async with aclosing(replies):
            while True:
                async with self.over(caller):
                    reply = await anext(replies, None)
                if reply is None:
                    return
                self._guard.check_sent(caller)
                yield reply

    async def _check(self, caller: Caller, message: Any) -> None:
        check_decoded(message)
        if self._rule is not None:
            await self._guard.check(caller, self._method, self._rule, message)


def _guarded(behaviour: Any, check: _Check) -> Any:
    """Return a handler that checks calls, and lets `behaviour` handle them. Messages are read only after the caller was
    accepted. Until then, at most one flow-control window of the stream is in memory.
    """
    if isasyncgenfunction(behaviour):

        async def stream(requests: Any, context: Context) -> AsyncIterator[Any]:
            with check.caller(context) as caller:
                request = await check.request(caller, requests)
                async for reply in check.replies(caller, behaviour(request, context)):
                    yield reply

        return stream

    async def run(requests: Any, context: Context) -> Any:
        with check.caller(context) as caller:
            request = await check.request(caller, requests)
            async with check.over(caller):
                return await behaviour(request, context)

    return run


@lru_cache(CALLERS_REMEMBERED)
def _named_by(uris: tuple[bytes, ...]) -> Peer:
    return Peer.of_uris(uri.decode(errors="replace") for uri in uris)
