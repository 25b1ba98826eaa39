"""The files of a certificate in a folder: `ca.pem`, `cert.pem`, `key.pem`, read and checked before they are used."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedstrata.errors import CertificateError, OutputError
from fedstrata.process.logs import EventLog
from fedstrata.process.private_files import make_private
from fedstrata.store import write_aside
from fedstrata.trust.name_sets import NameSet
from fedstrata.trust.names import Name, Peer
from fedstrata.trust.renewal import Renewal, Seen, stamp
from fedstrata.trust.revoked import REVOKED, Revoked
from fedstrata.trust.revoked_file import RevokedFile

CA, CERT, KEY, CA_KEY = "ca.pem", "cert.pem", "key.pem", "ca-key.pem"
PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
log = EventLog("trust")
READINGS = 20  # of files that are replaced while they are read


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """Whom a process trusts, who it is, and its key; as PEM, and where they came from."""

    folder: Path
    ca: bytes
    cert: bytes
    key: bytes
    me: Peer
    revoked_file: RevokedFile | None = field(default=None, compare=False, repr=False)
    renewal: "Renewal[TlsFiles]" = field(default_factory=Renewal, compare=False, repr=False)

    @classmethod
    def load(cls, folder: Path, revoked: Path | None = None) -> "TlsFiles":
        """The files of a folder, checked: each is whole, they fit, and the certificate is valid now.

        `revoked` is the list of certificates that count no more, where it is not beside them.

        Raises:
            CertificateError: they are not, or are not there; or a list of revoked ones beside them cannot be read.
        """
        found, set_of_files = cls._load(folder)
        files = replace(found, revoked_file=RevokedFile(revoked or folder / REVOKED))
        files.renewal.begin(files, set_of_files)
        return files

    @classmethod
    def _load(cls, folder: Path) -> tuple["TlsFiles", Seen]:
        """The files without the list, and which they are; what is replaced while it is read is read again."""
        for _ in range(READINGS):
            before = seen(folder)
            try:
                files = cls._read(folder)
            except CertificateError:
                if seen(folder) == before:
                    raise
                continue
            if seen(folder) == before:
                return files, before
        raise CertificateError(f"the files in {folder} change all the time; let whoever writes them come to an end")

    def newest(self, *, at_once: bool = False) -> "TlsFiles":
        """The files of the folder as they are now, for who was given these; looked at once a second, or `at_once`.

        Files that cannot be used, or name somebody else, are passed over: a process goes on with what it has.
        """
        return self.renewal.newest(self, lambda: seen(self.folder), self._renewed, _tell, at_once=at_once)

    def revoked(self, *, at_once: bool = False) -> Revoked:
        """Whose certificates count no more, by the list beside these files as it is now; looked at like them."""
        return Revoked() if self.revoked_file is None else self.revoked_file.newest(at_once=at_once)

    @cached_property
    def authorities(self) -> frozenset[bytes]:
        """The certificates in `ca.pem`, in PEM."""
        return frozenset(PEM.findall(self.ca))

    def is_shown_as(self, other: "TlsFiles") -> bool:
        """Whether a connection made with these files is as one with the others."""
        return (self.ca, self.cert, self.key) == (other.ca, other.cert, other.key)

    def _renewed(self) -> "TlsFiles":
        """The files of the folder now. Raises CertificateError where they are not for this process."""
        files, _ = TlsFiles._load(self.folder)
        if files.me.domain != self.me.domain:
            raise CertificateError(f"{self.folder / CERT} is now of run {files.me.domain!r}, not {self.me.domain!r}")
        files.require(*self.me.names)
        return replace(files, renewal=self.renewal, revoked_file=self.revoked_file)

    @classmethod
    def _read(cls, folder: Path) -> "TlsFiles":
        found = {name: _read(folder / name) for name in (CA, CERT, KEY)}
        server = _checked(ssl.PROTOCOL_TLS_SERVER, folder)
        client = _checked(ssl.PROTOCOL_TLS_CLIENT, folder)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        server.verify_mode = ssl.CERT_REQUIRED
        me = Peer.of_uris(_own_uris(client, server, folder))
        return cls(folder=folder, ca=found[CA], cert=found[CERT], key=found[KEY], me=me)

    def require(self, *names: Name) -> None:
        """Raise CertificateError unless the certificate names all of these, which this process is."""
        mine = NameSet(self.me.names)
        for name in names:
            if not mine.covers(name):
                raise CertificateError(
                    f"{self.folder / CERT} names {self.me}, and this process is {name}: give it the certificate of that"
                )

    def client_context(self) -> ssl.SSLContext:
        """How this process would greet a server with Python's own TLS, which tells what gRPC does not."""
        context = _checked(ssl.PROTOCOL_TLS_CLIENT, self.folder)
        context.set_alpn_protocols(["h2"])
        return context


def _tell(files: TlsFiles) -> None:
    log.info("certificate_taken", certificate=_fingerprint(files.cert), authority=_fingerprint(files.ca))


def _fingerprint(content: bytes) -> str:
    """What tells one file from another in a log: SHA-256 of its bytes, as `sha256sum` has it, in part."""
    return sha256(content).hexdigest()[:16]


def seen(folder: Path) -> Seen:
    """What tells one set of a folder's files from another, without reading them."""
    return tuple(stamp(folder / name) for name in (CA, CERT, KEY))


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner may look into, if it is not there. Raises OutputError."""
    try:
        make_private(folder)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror}; give another") from None


def write_private(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files to a folder, each of which only its owner may read, in this order."""
    private_folder(folder)
    for name, content in files.items():
        with write_aside(folder / name) as file:
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
    except OSError as error:
        raise CertificateError(f"{folder / CA}: {error.strerror}; copy it again") from None
    try:
        context.load_cert_chain(folder / CERT, folder / KEY, password=_no_password)
    except (ssl.SSLError, CertificateError) as error:
        raise CertificateError(
            f"{folder / CERT} and {KEY} beside it are damaged or of different certificates ({_why(error)}); "
            "issue them again"
        ) from None
    except OSError as error:
        raise CertificateError(f"{folder / CERT} or {KEY} beside it: {error.strerror}; issue them again") from None
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
