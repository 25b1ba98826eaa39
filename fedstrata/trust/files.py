"""The files of a certificate in a folder: `ca.pem`, `cert.pem`, `key.pem`, read and checked before they are used."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstrata.errors import CertificateError, OutputError
from fedstrata.store import write_aside
from fedstrata.trust.names import Name, Peer

CA, CERT, KEY, CA_KEY = "ca.pem", "cert.pem", "key.pem", "ca-key.pem"
ONLY_THE_OWNER = 0o700


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """Whom a process trusts, who it is, and its key; as PEM, and where they came from."""

    folder: Path
    ca: bytes
    cert: bytes
    key: bytes
    me: Peer

    @classmethod
    def load(cls, folder: Path) -> "TlsFiles":
        """The files of a folder, checked: each is whole, they fit, and the certificate is valid now.

        Raises:
            CertificateError: they are not, or are not there.
        """
        found = {name: _read(folder / name) for name in (CA, CERT, KEY)}
        server = _checked(ssl.PROTOCOL_TLS_SERVER, folder)
        client = _checked(ssl.PROTOCOL_TLS_CLIENT, folder)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        server.verify_mode = ssl.CERT_REQUIRED
        me = Peer.of_uris(_own_uris(client, server, folder))
        return cls(folder=folder, ca=found[CA], cert=found[CERT], key=found[KEY], me=me)

    def require(self, *names: Name) -> None:
        """Raise CertificateError unless the certificate names all of these, which this process is."""
        for name in names:
            if name not in self.me.names and not (name.id and self.me.is_(name.role, name.id)):
                raise CertificateError(
                    f"{self.folder / CERT} names {self.me}, and this process is {name}: give it the certificate of that"
                )

    def client_context(self) -> ssl.SSLContext:
        """How this process would greet a server with Python's own TLS, which tells what gRPC does not."""
        context = _checked(ssl.PROTOCOL_TLS_CLIENT, self.folder)
        context.set_alpn_protocols(["h2"])
        return context


def make_private(folder: Path) -> None:
    """Make a folder that only its owner may look into, if it is not there. Raises OutputError."""
    try:
        folder.mkdir(mode=ONLY_THE_OWNER, parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror}; give another") from None


def write_private(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files to a folder, each of which only its owner may read, in this order."""
    make_private(folder)
    for name, content in files.items():
        with write_aside(folder / name, is_private=True) as file:
            file.write(content)


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}; --tls names a folder with {CA}, {CERT} and {KEY}") from None
    if b"-----BEGIN " not in content:
        raise CertificateError(f"{path} is not PEM; issue it again")
    return content


def _checked(protocol: int, folder: Path) -> ssl.SSLContext:
    """A context with the folder's files. Raises CertificateError when they do not fit each other."""
    context = ssl.SSLContext(protocol)
    try:
        context.load_verify_locations(folder / CA)
    except ssl.SSLError as error:
        raise CertificateError(f"{folder / CA} is damaged ({_why(error)}); copy it again") from None
    try:
        context.load_cert_chain(folder / CERT, folder / KEY, password=_no_password)
    except (ssl.SSLError, CertificateError) as error:
        raise CertificateError(
            f"{folder / CERT} and {KEY} beside it are damaged or of different certificates ({_why(error)}); "
            "issue them again"
        ) from None
    return context


def _no_password() -> str:
    raise CertificateError("the key is encrypted, and nobody is asked for its password")


def _own_uris(client: ssl.SSLContext, server: ssl.SSLContext, folder: Path) -> list[str]:
    """The URIs of the certificate, from a handshake of this process with itself: what a parent would make of it.

    Raises:
        CertificateError: a parent would not take it.
    """
    ways = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller, parent = client.wrap_bio(ways[0], ways[1]), server.wrap_bio(ways[1], ways[0], server_side=True)
    for side in (caller, parent, caller, parent):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            raise CertificateError(
                f"{folder / CERT} is not to be used: {_why(error)}; issue it again, by the authority of {CA} beside it"
            ) from None
    said: Any = (parent.getpeercert() or {}).get("subjectAltName", ())
    return [value for kind, value in said if kind == "URI"]


def _why(error: Exception) -> str:
    """What OpenSSL found, without its codes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).replace("_", " ").lower()
