"""What gRPC is given of a process's certificate, and by which name it checks that of a parent."""

from pathlib import Path
from typing import Any

import grpc

from fedstrata.trust.files import TlsFiles
from fedstrata.trust.names import Name, server_name

GPS = Name("gps")


def load_tls(folder: str | Path | None, *me: Name, revoked: str | Path | None = None) -> TlsFiles | None:
    """The certificate of a process that is all of `me`, in the folder it was given; None: it speaks in the clear.

    `revoked` is a list of certificates that count no more, in place of the one beside it.

    Raises:
        CertificateError: the folder's files cannot be used, or name somebody else.
    """
    if not folder:
        return None
    tls = TlsFiles.load(Path(folder), Path(revoked) if revoked else None)
    tls.require(*me)
    return tls


def server_credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """Of a server: only callers with a certificate of its own authority get as far as a call.

    Each handshake is by the files that are in its folder then.
    """
    shown = tls

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        newest = shown.newest(at_once=True)
        if newest.is_shown_as(shown):
            return None
        shown = newest
        return _configuration(newest)

    fetch: Any = renewed  # None says that nothing has changed, of which gRPC's stubs do not know
    return grpc.dynamic_ssl_server_credentials(_configuration(tls), fetch, require_client_authentication=True)


def _configuration(tls: TlsFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.cert)], root_certificates=tls.ca)


def channel_credentials(tls: TlsFiles) -> grpc.ChannelCredentials:
    """Of a caller: only a server with a certificate of its own authority is spoken to."""
    return grpc.ssl_channel_credentials(tls.ca, private_key=tls.key, certificate_chain=tls.cert)


def checked_as(parent: Name) -> tuple[tuple[str, str], ...]:
    """The channel's option for whom a server has to be: addresses change, and say nothing of who is there."""
    return (("grpc.ssl_target_name_override", server_name(parent)),)
