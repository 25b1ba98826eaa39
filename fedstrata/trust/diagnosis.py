"""Why no connection to a server comes about: gRPC tries it again for ever, and tells a server that is not up yet from
one that will never do by an error text at best.
"""

import asyncio
import socket
import ssl
import time

from fedstrata.errors import CertificateError
from fedstrata.link import Backoff
from fedstrata.rpc.address import split_address
from fedstrata.trust.files import TlsFiles
from fedstrata.trust.names import Name, server_name

GREETING_S = 5.0  # for one connection
GREETING_BYTES = 1 << 14
HUNG_UP_TRIES = 3  # a server that is just ending hangs up, too
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)  # and an empty SETTINGS frame
OF_TLS = (b"\x15\x03", b"\x16\x03")  # how an alert and a handshake begin


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


def certificate_of(address: str, tls: TlsFiles, parent: Name) -> bytes:
    """The certificate that a server shows now, in PEM, which this process's authority vouches for.

    Raises:
        OSError: nobody answers, or with another. CertificateError: this process's own files cannot be read.
    """
    # Not over the socket itself: one that is reset meanwhile would stay open in ssl's hands.
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    wrapped = tls.client_context().wrap_bio(incoming, outgoing, server_hostname=server_name(parent))
    until = time.monotonic() + GREETING_S
    with socket.create_connection(split_address(address), timeout=GREETING_S) as connection:
        while True:
            try:
                wrapped.do_handshake()
                break
            except ssl.SSLWantReadError:
                if (left_s := until - time.monotonic()) <= 0:
                    raise TimeoutError(f"{parent} takes longer than {GREETING_S:g} s to greet") from None
                connection.settimeout(left_s)
                connection.sendall(outgoing.read())
                if not (said := connection.recv(GREETING_BYTES)):
                    raise ConnectionResetError(f"{parent} hangs up") from None
                incoming.write(said)
    return ssl.DER_cert_to_PEM_cert(wrapped.getpeercert(binary_form=True) or b"").encode()


def _greet(host: str, port: int, tls: TlsFiles | None, parent: Name) -> str | None:
    with socket.create_connection((host, port), timeout=GREETING_S) as connection:
        if tls is not None:
            return _greet_by_tls(connection, tls, parent)
        connection.sendall(PREFACE)
        heard = connection.recv(len(OF_TLS[0]))
    if heard in OF_TLS or (not heard and _speaks_tls(host, port)):
        return "speaks TLS, and this process has no certificate; give it a folder with --tls"
    return None


def _greet_by_tls(connection: socket.socket, tls: TlsFiles, parent: Name) -> str | None:
    try:
        with tls.client_context().wrap_socket(connection, server_hostname=server_name(parent)) as wrapped:
            if not wrapped.recv(1):
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
        with (
            socket.create_connection((host, port), timeout=GREETING_S) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except OSError:  # of which ssl's errors are
        return False
