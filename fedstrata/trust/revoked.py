"""Certificates that count no more, from `revoked.txt`: a line each, a name or a serial number."""

import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from fedstrata.errors import CertificateError
from fedstrata.trust.name_sets import NameSet
from fedstrata.trust.names import Name, Peer, Role, name_of

REVOKED = "revoked.txt"
SERIAL = re.compile(r"serial ([0-9a-f]{1,40})")
MOST_BYTES = 1 << 18  # read in a tenth of a second, in which nobody else is heard
CERTIFICATES_REMEMBERED = 4096


@dataclass(frozen=True)
class Revoked:
    """Names that nobody has any more, and certificates that are nobody's, by their serial numbers."""

    names: frozenset[Name] = field(default_factory=frozenset)
    serials: frozenset[int] = field(default_factory=frozenset)

    @classmethod
    def parse(cls, text: str) -> "Revoked":
        """Read a list; what follows a # is passed over.

        Raises:
            CertificateError: a line is neither a name nor a serial number, or the last one has no end.
        """
        if not text.endswith("\n") and text:
            raise CertificateError(
                f"{REVOKED}: its last line has no end, so it may be copied in part; end the last line, or copy it again"
            )
        names, serials = set(), set()
        for number, line in enumerate(text.splitlines(), 1):
            entry = line.partition("#")[0].strip()
            if found := SERIAL.fullmatch(entry):
                serials.add(int(found[1], 16))
            elif entry:
                try:
                    names.add(name_of(entry))
                except CertificateError as error:
                    raise CertificateError(
                        f"{REVOKED}, line {number}: {error}; expected a name such as device/device-003, or serial and "
                        "a number in hexadecimal digits"
                    ) from None
        return cls(frozenset(names), frozenset(serials))

    def files(self) -> dict[str, bytes]:
        """The list as it stands in its file, by the name of that; no file where nothing is revoked."""
        entries = [*sorted(map(str, self.names)), *(f"serial {serial:x}" for serial in sorted(self.serials))]
        return {REVOKED: "".join(f"{entry}\n" for entry in entries).encode()} if entries else {}

    def with_also(self, names: Iterable[Name], serials: Iterable[int]) -> "Revoked":
        """These and others."""
        return Revoked(self.names.union(names), self.serials.union(serials))

    def why(self, peer: Peer, certificate: bytes) -> str | None:
        """Why the holder of a certificate is refused, whatever it calls; None where it is not."""
        if not self.entries:
            return None
        if self.serials and (serial := serial_of(certificate)) in self.serials:
            return f"the certificate {serial:x} of {peer} is revoked"
        if all(map(self._named.covers, peer.names)):
            return f"{peer} is revoked"
        return None

    def revokes(self, roles: Iterable[Role], device_or_lps_id: str) -> bool:
        """Whether nobody may speak for a device or an LPS of that id."""
        return any(self._named.has(role, device_or_lps_id) for role in roles)

    @property
    def entries(self) -> int:
        """How many names and serial numbers there are."""
        return len(self.names) + len(self.serials)

    @cached_property
    def _named(self) -> NameSet:
        return NameSet(self.names)


@lru_cache(CERTIFICATES_REMEMBERED)
def serial_of(certificate: bytes) -> int:
    """The serial number of a certificate in PEM. Raises CertificateError where there is none.

    Services have no `cryptography`; of the certificate, which TLS has checked, the first few elements are walked.
    """
    try:
        der = ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))
        at, _ = _inside(der, _inside(der, 0)[0])  # the certificate, and in it what is signed
        if der[at] == 0xA0:  # the version
            at = _inside(der, at)[1]
        begin, end = _inside(der, at)
        return int.from_bytes(der[begin:end], "big")
    except (ValueError, IndexError):
        raise CertificateError("what the caller shows is no certificate whose serial number can be read") from None


def _inside(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of an element begins and ends."""
    length, at = der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, at = int.from_bytes(der[at : at + size], "big"), at + size
    if at + length > len(der):
        raise ValueError(length)
    return at, at + length
