"""Limits on the calls of one identity at a server: how many calls may be open, and how many may begin per second. An
identity with more devices or clusters has higher limits.

An identity is the set of names in a certificate, so further connections do not raise its limits. The limits are far
above the needs of the protocol, so honest callers never reach them. In a flood of calls, the server does not even read
the messages.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from fedstrata.errors import TooManyCallsError
from fedstrata.process.logs import EventLog
from fedstrata.trust.names import Peer

# Open calls per device, and in addition per identity. A device has a session and one other call, and for a short time
# twice as many after a restart.
AT_ONCE_EACH, AT_ONCE_BESIDE = 8, 32
PER_S_EACH = 100.0  # a device makes about ten calls in a run, and at most twenty per second after a broken call
BURST_S = 10.0  # so many seconds' calls may begin at once, because a starting process calls for all its devices
# Calls of one identity that read their first message at the same time. The message can have a megabyte, and is in
# memory three times until it is decoded.
READ_AT_ONCE = 4
# Time limit for the first message. On the slowest link, the largest first message takes three seconds. A process with
# 1,000 devices on a twentieth of a core needs more than ten. Only the same peer's calls wait for a silent call.
FIRST_MESSAGE_S = 60.0
OPERATORS = 16  # other identities may make as many calls as this number of devices, for example from several windows
IDENTITIES_REMEMBERED = 4096
SAID_AGAIN_S = 60.0  # least time between two log lines about one peer
log = EventLog("trust")


@dataclass
class _Share:
    """Hold how many calls an identity may still begin, and how many of its calls are open."""

    allowed: float  # number of calls that the identity may begin at the time `at_s`
    at_s: float
    under_way: int = 0
    said_at_s: float = float("-inf")
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READ_AT_ONCE))


class Shares:
    """Limit the calls of each identity."""

    def __init__(self, children: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Set `children`, the number of devices of the run. An LPS has at most as many clusters as the run has devices,
        so this number also limits the calls of an LPS.
        """
        self._children = children
        self._clock = clock
        self._shares: OrderedDict[Peer, _Share] = OrderedDict()

    @contextmanager
    def call(self, peer: Peer) -> Iterator[None]:
        """Count a call of an identity as open while the block runs.

        Raises:
            TooManyCallsError: the identity has too many open calls, or has begun too many in a short time.
        """
        share = self._take(peer)
        try:
            yield
        finally:
            share.under_way -= 1

    @asynccontextmanager
    async def reading(self, peer: Peer) -> AsyncIterator[None]:
        """Run a block that reads the first message of a call. Only a few calls of an identity may read at the same
        time.

        Raises:
            TooManyCallsError: the message does not come in time.
        """
        async with self._shares[peer].reading:
            try:
                async with asyncio.timeout(FIRST_MESSAGE_S):
                    yield
            except TimeoutError:
                raise TooManyCallsError(
                    f"a call of {peer} sent no message for {FIRST_MESSAGE_S:g} s; try again"
                ) from None

    def _take(self, peer: Peer) -> _Share:
        each, now = self._weight(peer), self._clock()
        most, per_s = AT_ONCE_EACH * each + AT_ONCE_BESIDE, PER_S_EACH * each
        share = self._shares.get(peer)
        if share is None:
            share = self._remember(peer, _Share(per_s * BURST_S, now))
        share.allowed = min(per_s * BURST_S, share.allowed + (now - share.at_s) * per_s)
        share.at_s = now
        if share.under_way >= most:
            raise self._refusal(peer, share, f"{peer} has {share.under_way} open calls; {most} are allowed")
        if share.allowed < 1:
            raise self._refusal(peer, share, f"{peer} begins more than {per_s:g} calls per second")
        share.allowed -= 1
        share.under_way += 1
        self._shares.move_to_end(peer)
        return share

    def _remember(self, peer: Peer, share: _Share) -> _Share:
        """Keep the counts of an identity. If there are too many identities, forget the least recently used identity
        without open calls.
        """
        for _ in range(len(self._shares) if len(self._shares) >= IDENTITIES_REMEMBERED else 0):
            oldest, held = self._shares.popitem(last=False)
            if not held.under_way:
                break
            self._shares[oldest] = held
        self._shares[peer] = share
        return share

    def _refusal(self, peer: Peer, share: _Share, reason: str) -> TooManyCallsError:
        if share.at_s - share.said_at_s >= SAID_AGAIN_S:
            share.said_at_s = share.at_s
            log.warning("calls_limited", peer=str(peer), reason=reason)
        return TooManyCallsError(f"{reason}; wait, and try again")

    def _weight(self, peer: Peer) -> int:
        """Return the factor of an identity's limits: the number of devices in its certificate, or for an LPS the number
        of devices of the run. For any other identity the factor is a constant.
        """
        devices, clusters = sum(name.devices for name in peer.names), self._children if peer.is_a("lps") else 0
        return max(devices, clusters) or OPERATORS
