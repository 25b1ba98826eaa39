"""Certificates that counted when their connection began, and do not now: run out, or by an authority that is dropped.

A connection outlives both. Who has a newer certificate in its folder changes over by itself, so that a call is refused
as one that may be tried again; who has none goes on trying, and is named.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime

from fedstrata.errors import CertificateError, OutdatedError
from fedstrata.process.logs import EventLog
from fedstrata.trust.names import Peer, Role
from fedstrata.trust.shown import is_vouched_for, shown_by

RECENT_S = 10.0  # for how long somebody counts as shut out who has not been heard since: tries are two seconds apart
SAID_AGAIN_S = 60.0
REMEMBERED = 1024  # of those who were refused
log = EventLog("trust")


class Outdated:
    """Refuses what is said by a certificate that counts no more, and remembers by whom."""

    def __init__(self, authorities: Callable[[], frozenset[bytes]], clock: Callable[[], float] = time.time) -> None:
        """`authorities` are the certificates, in PEM, of those that are trusted now."""
        self._authorities = authorities
        self._clock = clock
        self._refused_at: OrderedDict[Peer, float] = OrderedDict()
        self._said_at: dict[Peer, float] = {}

    def check(self, peer: Peer, certificate: bytes, beside: tuple[bytes, ...]) -> None:
        """Raise OutdatedError where a certificate counts no more; `beside` are those that were shown with it.

        Raises:
            CertificateError: it is none.
        """
        why = self._why(certificate, beside)
        if why is None:
            return
        self._note(peer, why)
        raise OutdatedError(
            f"the certificate of {peer} {why}; renew it (fedstrata certs renew): it is taken from where it lies"
        )

    def _why(self, certificate: bytes, beside: tuple[bytes, ...]) -> str | None:
        until = shown_by(certificate).until
        if until < self._clock():
            return f"has run out on {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC"
        try:
            is_trusted = is_vouched_for(certificate, beside, self._authorities())
        except CertificateError:  # one of those beside it, or an authority, is of a kind that is not read here
            return None
        return None if is_trusted else "is by an authority that counts no more"

    def _note(self, peer: Peer, why: str) -> None:
        now = self._clock()
        self._refused_at[peer] = now
        self._refused_at.move_to_end(peer)
        if len(self._refused_at) > REMEMBERED:
            oldest, _ = self._refused_at.popitem(last=False)
            self._said_at.pop(oldest, None)
        if now - self._said_at.get(peer, float("-inf")) >= SAID_AGAIN_S:
            self._said_at[peer] = now
            log.warning("certificate_outdated", peer=str(peer), reason=why)

    def shuts_out(self, role: Role, device_or_lps_id: str) -> bool:
        """Whether somebody of that id is refused now for a certificate that counts no more."""
        since = self._clock() - RECENT_S
        return any(at >= since and peer.is_(role, device_or_lps_id) for peer, at in self._refused_at.items())
