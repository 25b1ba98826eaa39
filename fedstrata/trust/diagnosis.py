"""Why no connection to a server comes about: gRPC tries it again for ever, and tells a server that is not up yet from
one that will never do by an error text at best.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from fedstrata.errors import CertificateError
from fedstrata.process.address import split_address
from fedstrata.process.sleeping import Backoff
from fedstrata.trust.files import TlsFiles
from fedstrata.trust.names import Name, server_name

GREETING_S = 5.0  # for one connection, from its beginning to its end
GREETING_BYTES = 1 << 14
HUNG_UP_TRIES = 3  # a server that is just ending hangs up, too
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)  # and an empty SETTINGS frame
OF_TLS = (b"\x15\x03", b"\x16\x03")  # how an alert and a handshake begin

Result = TypeVar("Result")


class _HungUpError(Exception):
    """The server has shown its certificate, and closed the connection when it had seen ours."""


async def why_refused(address: str, tls: TlsFiles | None, parent: Name) -> str | None:
    """Why calls to a server will not go through, in words for who started the caller; None: they may, later."""
    host, port = split_address(address)
    tls = tls and tls.newest(at_once=True)
    backoff = Backoff()
    for _ in range(HUNG_UP_TRIES):
        try:
            reason = await asyncio.to_thread(_greet, host, port, tls, parent)
            return reason and f"{parent} at {address} {reason}"
        except _HungUpError:
            await backoff.pause()
        except (OSError, CertificateError):  # nobody answers now, or the files that would be shown are being replaced
            return None
    if tls is None:
        return None
    return (
        f"{parent} at {address} hangs up on {tls.me}: the certificate in {tls.folder} is of another authority than its "
        "own, or not valid by its clock; issue it again"
    )


class _Connection:
    """A connection on which a greeting takes so long in all, however little at a time the server says."""

    def __init__(self, raw: socket.socket, until: float) -> None:
        self._raw = raw
        self._until = until
        # Not over the socket itself: one that is reset meanwhile would stay open in ssl's hands.
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    def send(self, data: bytes) -> None:
        """Say something. Raises OSError."""
        self._raw.settimeout(self._left_s())
        self._raw.sendall(data)

    def receive(self, most: int = GREETING_BYTES) -> bytes:
        """What is said next; nothing where the server hangs up. Raises OSError."""
        self._raw.settimeout(self._left_s())
        return self._raw.recv(most)

    def _left_s(self) -> float:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"a greeting takes longer than {GREETING_S:g} s")
        return left_s

    def by_tls(self, context: ssl.SSLContext, hostname: str | None = None) -> ssl.SSLObject:
        """TLS over it, once the server has shown its certificate. Raises OSError, of which ssl's errors are."""
        wrapped = context.wrap_bio(self._incoming, self._outgoing, server_hostname=hostname)
        self._done(wrapped.do_handshake)
        return wrapped

    def is_spoken_to(self, wrapped: ssl.SSLObject) -> bool:
        """Whether the server says something by TLS, and does not hang up. Raises OSError."""
        try:
            return bool(self._done(lambda: wrapped.read(1)))
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return False

    def _done(self, step: Callable[[], Result]) -> Result:
        """Do what reads and writes by TLS, as often as it takes."""
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                self._flush()
            except ssl.SSLError:
                with suppress(OSError):  # why it is refused, as far as the server hears it
                    self._flush()
                raise
            else:
                self._flush()
                return done
            if said := self.receive():
                self._incoming.write(said)
            else:
                self._incoming.write_eof()

    def _flush(self) -> None:
        if said := self._outgoing.read():
            self.send(said)


@contextmanager
def _connected(host: str, port: int) -> Iterator[_Connection]:
    until = time.monotonic() + GREETING_S
    with socket.create_connection((host, port), timeout=GREETING_S) as raw:
        yield _Connection(raw, until)


def _greet(host: str, port: int, tls: TlsFiles | None, parent: Name) -> str | None:
    with _connected(host, port) as connection:
        if tls is not None:
            return _greet_by_tls(connection, tls, parent)
        connection.send(PREFACE)
        heard = connection.receive(len(OF_TLS[0]))
    if heard in OF_TLS or (not heard and _speaks_tls(host, port)):
        return "speaks TLS, and this process has no certificate; give it a folder with --tls"
    return None


def _greet_by_tls(connection: _Connection, tls: TlsFiles, parent: Name) -> str | None:
    try:
        wrapped = connection.by_tls(tls.client_context(), server_name(parent))
        if not connection.is_spoken_to(wrapped):
            raise _HungUpError
        return None
    except ssl.SSLCertVerificationError as error:
        return f"shows a certificate that {tls.folder} does not vouch for: {error.verify_message}; is it of this run?"
    except (
        ssl.SSLEOFError
    ):  # before anybody has shown anything: a link that is cut, or a server that has too many callers
        return None
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER":
            return "speaks no TLS; start it with --tls as well, or this process without"
        return f"refuses the connection: {str(error.reason or error).replace('_', ' ').lower()}"


def _speaks_tls(host: str, port: int) -> bool:
    """Whether a server answers a TLS greeting, whoever it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with _connected(host, port) as connection:
            connection.by_tls(context)
            return True
    except OSError:  # of which ssl's errors are
        return False
