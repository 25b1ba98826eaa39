"""The current TLS files of a process: its certificate and key, its authorities, and the revoked names.

At each use, but at most once per second, this module checks whether the files have changed. It then reads them again.
"""

import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import grpc

from fedstrata.errors import CertificateError
from fedstrata.process.logs import EventLog
from fedstrata.process.private_files import private_folder
from fedstrata.process.regular_files import check_regular
from fedstrata.store import write_aside
from fedstrata.trust.names import Name, NameSet, Peer, Role, name_of, server_name

CA, CERT, KEY, CA_KEY, REVOKED = "ca.pem", "cert.pem", "key.pem", "ca-key.pem", "revoked.txt"
LOOK_S = 1.0
READ_AGAIN_S = 60.0  # unusable files are read again after this time; the clock may have been set, or the disk be back
READINGS = 20  # most readings if files are replaced while they are read
# Largest list: 13,000 devices such as device-00001, 3,600 long names, or any number of devices in ranges. A server
# reads a changed list between two messages, which takes up to 0.13 s.
MOST_BYTES = 1 << 18
GPS, FLEET, OPERATOR = Name("gps"), Name("fleet"), Name("operator")
log = EventLog("trust")


class _Told(Protocol):
    def told(self) -> dict[str, Any]:
        """Return the fields that describe the content in a log event."""


Content = TypeVar("Content", bound=_Told)


class _Watched(Generic[Content]):
    """Hold the content of some files, and read the files again when they change. If the new content is unusable, keep
    the old content.

    kubelet changes times and permissions of files every minute. The files are then read again, but content that is
    equal is not logged as new.
    """

    def __init__(
        self, kind: str, paths: Iterable[Path], read: Callable[["_Watched[Content]", Content | None], Content]
    ) -> None:
        """Read the files for the first time.

        `read` reads and checks them. Its arguments are this object and the present content, which is None at the first
        call. Names of log events begin with `kind`.

        Raises:
            CertificateError: the files cannot be used.
        """
        self._kind = kind
        self._paths = tuple(paths)
        self._read = read
        self._lock = threading.Lock()
        self._content = self._read_whole(None)
        self._next_look, self._read_again = time.monotonic() + LOOK_S, float("inf")
        self._reason = ""

    def newest(self, *, at_once: bool = False) -> Content:
        """Return the present content. The files are checked at most once per second, or immediately with `at_once`."""
        if at_once or time.monotonic() >= self._next_look:
            with self._lock:
                self._look()
        return self._content

    def _look(self) -> None:
        now = time.monotonic()
        self._next_look = now + LOOK_S
        if self._found() == self._stamp and now < self._read_again:
            return
        try:
            found = self._read_whole(self._content)
        except CertificateError as error:
            self._read_again = time.monotonic() + READ_AGAIN_S
            if str(error) != self._reason:
                self._reason = str(error)
                log.warning(f"{self._kind}_not_taken", reason=self._reason)
        else:
            if found != self._content or self._reason:
                self._content = found
                log.info(f"{self._kind}_taken", **found.told())
            self._read_again, self._reason = float("inf"), ""

    def _read_whole(self, had: Content | None) -> Content:
        for _ in range(READINGS):
            self._stamp = self._found()
            try:
                return self._read(self, had)
            except CertificateError:
                if self._found() == self._stamp:
                    raise
        raise CertificateError(
            f"the files in {self._paths[0].parent} change all the time; wait until the program that writes them is done"
        )

    def _found(self) -> tuple[tuple[int, ...], ...]:
        """Return sizes, times and inode numbers of the files on disk. If they differ from the last reading, a file has
        changed.
        """
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclass(frozen=True)
class Revoked:
    """Hold the list of revoked names. In the list's file, each line has one name, and text after `#` is a comment."""

    names: frozenset[Name] = field(default_factory=frozenset)

    @classmethod
    def load(cls, path: Path, before: "Revoked | None" = None) -> "Revoked":
        """Read the list from a file. A missing file is an empty list.

        Raises:
            CertificateError: the list cannot be read, or is empty although the earlier list `before` was not empty.
        """
        try:
            with path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
            text = content.decode()
        except FileNotFoundError:
            content, text = b"", ""
        except (OSError, UnicodeDecodeError) as error:
            raise CertificateError(
                f"{path} cannot be read: {error}; write the list with fedstrata certs revoke"
            ) from None
        if len(content) > MOST_BYTES:
            raise CertificateError(f"{path} has more than {MOST_BYTES} bytes; remove expired names")
        if before and before.names and not text.strip():
            raise CertificateError(
                f"{path} is empty or missing, so its {len(before.names)} entries stay revoked; copy it again, or, to "
                "revoke no name, write only a comment such as # nobody"
            )
        return cls.parse(text, path)

    @classmethod
    def parse(cls, text: str, path: str | Path = REVOKED) -> "Revoked":
        """Parse the text of a list. Raises CertificateError if a line is not a name, or if the last line does not end
        with a line feed.
        """
        if not text.endswith("\n") and text:
            raise CertificateError(
                f"{path}: the last line has no line feed, so a part may be missing; copy it again, or add a line feed"
            )
        names = set()
        for number, line in enumerate(text.splitlines(), 1):
            if entry := line.partition("#")[0].strip():
                try:
                    names.add(name_of(entry))
                except CertificateError as error:
                    raise CertificateError(
                        f"{path}, line {number}: {error}; expected a name such as device/device-003"
                    ) from None
        return cls(frozenset(names))

    def files(self) -> dict[str, bytes]:
        """Return the content of the list's file by the file's name. If no name is revoked, return an empty mapping.

        Raises:
            CertificateError: the content is larger than processes accept.
        """
        content = "".join(f"{name}\n" for name in sorted(map(str, self.names))).encode()
        if len(content) > MOST_BYTES:
            raise CertificateError(
                f"the list of revoked names would have {len(content)} bytes, and processes accept {MOST_BYTES}; remove "
                f"names from {REVOKED} whose certificates have expired, or join names to ranges"
            )
        return {REVOKED: content} if content else {}

    def told(self) -> dict[str, Any]:
        """Return the fields that describe this list in a log event."""
        return {"entries": len(self.names)}

    def with_also(self, names: Iterable[Name]) -> "Revoked":
        """Return a list that has these names in addition to the present names."""
        return Revoked(self.names.union(names))

    def why(self, peer: Peer) -> str | None:
        """Return the reason for refusing every call of a peer if all names in its certificate are revoked. If at least
        one of the names is not revoked, return None.
        """
        return f"{peer} is revoked" if self.names and all(map(self._named.covers, peer.names)) else None

    def revokes(self, roles: Iterable[Role], device_or_lps_id: str) -> bool:
        """Return whether the list revokes the device or LPS with this id in one of these roles."""
        return any(self._named.has(role, device_or_lps_id) for role in roles)

    @cached_property
    def _named(self) -> NameSet:
        return NameSet(self.names)


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """Hold what a process's TLS folder contained at one time: certificate, key and trusted authorities, in PEM. The
    method `newest` returns the current content of the folder.
    """

    folder: Path
    ca: bytes
    cert: bytes
    key: bytes
    me: Peer
    server_domain: str = ""  # domain of servers' names, by which a proxy tells servers apart; may be empty
    on_disk: "_Watched[TlsFiles] | None" = field(default=None, compare=False, repr=False)
    listed: _Watched[Revoked] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def load(cls, folder: Path, revoked: Path | None = None, server_domain: str = "") -> "TlsFiles":
        """Read the TLS files in a folder.

        `revoked` is a file with a list of revoked names, which is used instead of the list in the folder. With
        `server_domain`, this process expects the names `gps.SERVER_DOMAIN` and `lps-0.SERVER_DOMAIN` in servers'
        certificates.

        Raises:
            CertificateError: a file is missing or damaged, or the files do not match, or are not valid now.
        """
        at = revoked or folder / REVOKED
        listed = _Watched("revoked", [at], lambda _, had: Revoked.load(at, had))
        paths = [folder / name for name in (CA, CERT, KEY)]
        return _Watched[TlsFiles]("certificate", paths, partial(cls._read, folder, listed, server_domain)).newest()

    @classmethod
    def _read(
        cls,
        folder: Path,
        listed: _Watched[Revoked],
        server_domain: str,
        on_disk: "_Watched[TlsFiles]",
        had: "TlsFiles | None",
    ) -> "TlsFiles":
        from fedstrata.trust import certificates

        ca, cert, key = (_content(folder / name) for name in (CA, CERT, KEY))
        authorities, chain = certificates.parsed(ca, folder / CA), certificates.parsed(cert, folder / CERT)
        if not certificates.is_key_of(key, chain[0]):
            raise CertificateError(
                f"{folder / KEY} is not the key of {CERT} in this folder, or is damaged, or has a password; issue both "
                "again"
            )
        if (why := certificates.why_unusable(chain, authorities)) is not None:
            raise CertificateError(
                f"{folder / CERT} cannot be used: {why}; issue it again with the authority of {CA} in this folder"
            )
        me = Peer.of_uris(certificates.uris(chain[0]))
        files = cls(
            folder=folder, ca=ca, cert=cert, key=key, me=me, server_domain=server_domain, on_disk=on_disk, listed=listed
        )
        if had is not None:
            if me.domain != had.me.domain:
                raise CertificateError(
                    f"{folder / CERT} now belongs to run {me.domain!r}, not {had.me.domain!r}; put the right files back"
                )
            files.require(*had.me.names)
        return files

    def newest(self, *, at_once: bool = False) -> "TlsFiles":
        """Return the current files of the folder. The folder is checked at most once per second, or immediately with
        `at_once`.

        If the new files are unusable, or lack a name of the present certificate, the process continues to use its
        present files.
        """
        return self if self.on_disk is None else self.on_disk.newest(at_once=at_once)

    def revoked(self, *, at_once: bool = False) -> Revoked:
        """Return the current list of revoked names. The list is read again when its file changes, even if the
        certificate stays the same.
        """
        return Revoked() if self.listed is None else self.listed.newest(at_once=at_once)

    def require(self, *names: Name) -> None:
        """Check that the certificate has all these names. Raises CertificateError if a name is missing."""
        mine = NameSet(self.me.names)
        for name in names:
            if not mine.covers(name):
                raise CertificateError(
                    f"{self.folder / CERT} is the certificate of {self.me}, but this process is {name}; give it the "
                    f"certificate of {name}"
                )

    def told(self) -> dict[str, Any]:
        """Return the fields that describe the files in a log event: the first 16 digits of the SHA-256 of `cert.pem`
        and of `ca.pem`.
        """
        return {"certificate": sha256(self.cert).hexdigest()[:16], "authority": sha256(self.ca).hexdigest()[:16]}

    def why_outdated(self, chain: bytes, now_s: float) -> str | None:
        """Return why a certificate is no longer valid: it has expired, or its authority is no longer trusted. If the
        certificate is valid, return None.

        `chain` has, in PEM, the certificate, then further certificates that its holder has shown. `now_s` is in seconds
        since 1970.

        Raises:
            CertificateError: the chain cannot be read.
        """
        from fedstrata.trust.certificates import standing

        until, is_vouched_for = standing(chain, self.ca)
        if until.timestamp() < now_s:
            return f"expired on {until:%Y-%m-%d %H:%M:%S} UTC"
        return None if is_vouched_for else "comes from an authority that is no longer trusted"

    def end_s(self) -> float:
        """Return the earlier of two times, in seconds since 1970: when the certificate expires, and when the last of
        the authorities expires.
        """
        from fedstrata.trust.certificates import certificates_in, standing

        until, _ = standing(self.cert, self.ca)
        return min(until, max(one.not_valid_after_utc for one in certificates_in(self.ca))).timestamp()

    def is_shown_as(self, other: "TlsFiles") -> bool:
        """Return whether these files and the other files have the same certificate, key and authorities."""
        return (self.ca, self.cert, self.key) == (other.ca, other.cert, other.key)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return a server's credentials. Each handshake uses the current files of the folder.

        Only callers with a certificate from an authority that the server trusts can connect.
        """
        shown = self

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            newest = shown.newest(at_once=True)
            if newest.is_shown_as(shown):
                return None
            shown = newest
            return newest._configuration()

        fetch: Any = renewed  # may return None if nothing has changed, but gRPC's stubs do not allow None
        return grpc.dynamic_ssl_server_credentials(self._configuration(), fetch, require_client_authentication=True)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self.key, self.cert)], root_certificates=self.ca)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return a caller's credentials. The caller then accepts only a server with a certificate from an authority
        that the caller trusts.
        """
        return grpc.ssl_channel_credentials(self.ca, private_key=self.key, certificate_chain=self.cert)

    def name_of_server(self, parent: Name) -> str:
        """Return the name that the parent's certificate must have. Callers check this name, not the parent's address,
        because the address can change. Callers also send the name at the start of TLS, so that a proxy can tell servers
        apart.
        """
        return server_name(parent, self.server_domain)

    def channel_options(self, parent: Name) -> tuple[tuple[str, str], ...]:
        """Return the channel options that make gRPC check the name in the parent's certificate."""
        return (("grpc.ssl_target_name_override", self.name_of_server(parent)),)

    def client_context(self) -> ssl.SSLContext:
        """Return a context with which Python's own TLS connects to a server. Raises OSError if the files are unusable.
        The errors of `ssl` are subclasses of OSError.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["h2"])
        context.load_verify_locations(self.folder / CA)
        context.load_cert_chain(self.folder / CERT, self.folder / KEY, password=lambda: "")
        return context


def tls_arguments(folder: Path | None) -> tuple[str, ...]:
    """Return the arguments with which a child process uses the TLS files in `folder`, or no TLS if `folder` is None.
    The arguments replace environment variables that the child inherits, such as FEDSTRATA_TLS.
    """
    return "--tls", str(folder or ""), "--revoked", "", "--server-domain", ""


def write_private(folder: Path, files: Mapping[str, bytes], *, durable: bool = True) -> None:
    """Write files to a folder, in the order of `files`, which maps each file's name to its content. Only the owner may
    read the files. With `durable`, flush each file to disk.
    """
    private_folder(folder)
    for name, content in files.items():
        with write_aside(folder / name, durable=durable) as file:
            file.write(content)


def _content(path: Path) -> bytes:
    try:
        check_regular(path, MOST_BYTES)
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(
            f"{path}: {error.strerror}; --tls must name a folder with {CA}, {CERT} and {KEY}"
        ) from None
