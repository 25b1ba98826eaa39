"""Find out why no connection to a server succeeds.

gRPC tries to connect without end. Its error text does not always say whether the server has not started yet, or will
never accept the caller. Therefore this module also connects to the server, with Python's own TLS.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from fedstrata.process.address import split_address
from fedstrata.process.waiting import Backoff
from fedstrata.trust.names import Name
from fedstrata.trust.tls_files import CA, TlsFiles

HOSTNAME_MISMATCH = 62  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH
ADVICE = {  # by OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED
    9: "set the clocks of both machines",
    10: "fedstrata certs renew renews it, if this machine's clock is right",
}
GREETING_S = 5.0  # time for each step: the connection, the handshake, and the server's first byte
HUNG_UP_TRIES = 3  # several, because a server that is stopping also closes connections


class _HungUpError(Exception):
    """The server has shown its certificate, and has closed the connection after it saw the caller's certificate."""


async def why_refused(address: str, tls: TlsFiles | None, parent: Name) -> str | None:
    """Return why calls to a server can never succeed, as a text for the user who started the caller. If calls may
    succeed later, return None.
    """
    host, port = split_address(address)
    tls = tls and tls.newest(at_once=True)
    greet: Callable[[str, int], str | None] = _greet_in_the_clear
    if tls is not None:
        greet = partial(_greet_by_tls, tls=tls, parent=parent)
    backoff = Backoff()
    for _ in range(HUNG_UP_TRIES):
        try:
            reason = await asyncio.to_thread(greet, host, port)
            return reason and f"{parent} at {address} {reason}"
        except _HungUpError:
            await backoff.pause()
        except OSError:  # the server does not answer now, or this process's TLS files are being replaced
            return None
    if tls is None:
        return None
    return (
        f"{parent} at {address} closes the connection of {tls.me}: the certificate in {tls.folder} comes from another "
        "authority than the server's, or is not valid by the server's clock; issue it again"
    )


@contextmanager
def _greeted(host: str, port: int, context: ssl.SSLContext, name: str | None = None) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection((host, port), timeout=GREETING_S) as raw,
        context.wrap_socket(raw, server_hostname=name, do_handshake_on_connect=False) as greeted,
    ):
        greeted.do_handshake()
        yield greeted


def _greet_in_the_clear(host: str, port: int) -> str:
    """Try a TLS handshake with the server, for a caller that has no certificate. The server's certificate is not
    checked.

    If the handshake succeeds, return the reason why the caller's calls fail: the server requires TLS. Raises OSError if
    the server does not answer, or speaks no TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with _greeted(host, port, context):
        return "speaks TLS, and this process has no certificate; give it a folder with --tls"


def _greet_by_tls(host: str, port: int, tls: TlsFiles, parent: Name) -> str | None:
    context = tls.client_context()
    try:
        with _greeted(host, port, context, tls.name_of_server(parent)) as greeted:
            if not greeted.recv(1):
                raise _HungUpError
            return None
    except ssl.SSLCertVerificationError as error:
        advice = ADVICE.get(error.verify_code, "check that both certificates belong to this run")
        if tls.server_domain and error.verify_code == HOSTNAME_MISMATCH:
            advice = f"fedstrata certs renew --server-domain {tls.server_domain} adds this name"
        reason = error.verify_message.rstrip(".")
        return f"has a certificate that {CA} in {tls.folder} does not accept: {reason}; {advice}"
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return None  # closed before the certificates were sent: the link is cut, or the server has too many callers
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER":
            return "does not speak TLS; start it with --tls, or start this process without --tls"
        reason = str(error.reason or error).replace("_", " ").lower()
        return f"refuses the connection: {reason}; check the files in {tls.folder}, and the server's"
