"""The certificate that a parent shows, which gRPC for Python does not tell: looked at where single ones are revoked.

Python's own TLS greets the parent once more, and connections are then bound to the certificate that it has shown: who
has the key of another, and lets greetings pass to the parent, gets no further than a handshake that fails.
"""

import asyncio
from collections.abc import Callable

from fedstrata.errors import CertificateError, NotServedError
from fedstrata.trust.files import TlsFiles
from fedstrata.trust.names import Name
from fedstrata.trust.shown import shown_by

LOOK_AGAIN_S = 1.0
TRIES = 3  # before a parent counts as one that hides its certificate while it answers calls


class ParentCertificate:
    """What is known of one parent's certificate; nothing is asked as long as no serial number is revoked."""

    def __init__(self, parent: Name, greet: Callable[[TlsFiles], bytes], on_change: Callable[[], None]) -> None:
        """`greet` gives the parent's certificate in PEM, and blocks; `on_change` hears that it is another now."""
        self._parent = parent
        self._greet = greet
        self._on_change = on_change
        self._looking: asyncio.Task[None] | None = None
        self._look_again = float("-inf")
        self._failures = 0
        self._authority = b""  # that has vouched for it
        self.only = b""  # what connections are bound to; empty: to whatever the authority vouches for

    def check(self, tls: TlsFiles, is_ready: Callable[[], bool]) -> None:
        """Look at the certificate if that is to be known; `is_ready` says whether the parent answers calls.

        Raises:
            NotServedError: it is revoked, or cannot be seen although the parent is there.
        """
        serials = tls.revoked().serials
        if not serials or tls.ca != self._authority:
            self.only, self._failures, self._authority = b"", 0, tls.ca
        if not serials:
            return
        serial = shown_by(self.only).serial if self.only else None
        if serial is None or serial in serials:
            self.look(tls)
        if serial is not None and serial in serials:
            raise NotServedError(
                f"the certificate {serial:x} of {self._parent} is revoked, by the list of {tls.me}; nothing is said "
                "to it"
            )
        if serial is None and self._failures >= TRIES and is_ready():
            raise NotServedError(
                f"{self._parent} answers, and does not show {tls.me} its certificate, which may be revoked; "
                "nothing is said to it"
            )

    def look(self, tls: TlsFiles) -> None:
        """Look at it, beside what else goes on; once a second at most."""
        now = asyncio.get_running_loop().time()
        if now >= self._look_again and (self._looking is None or self._looking.done()):
            self._look_again = now + LOOK_AGAIN_S
            self._looking = asyncio.ensure_future(self._look(tls))

    async def _look(self, tls: TlsFiles) -> None:
        try:
            shown = await asyncio.to_thread(self._greet, tls)
        except (OSError, CertificateError):  # of which ssl's errors are; or its files are being replaced
            self._failures += 1
            return
        self._failures = 0
        if shown != self.only and tls.ca == self._authority:
            self.only = shown
            self._on_change()

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
