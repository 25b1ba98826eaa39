"""Certificates as others issue them: on other days, for other uses, without the names of keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedstrata.trust.names import Name, Peer
from fedstrata.trust.tls_files import TlsFiles


class Signer(Protocol):
    """Who issues a certificate: an authority, or another certificate that a test has made."""

    @property
    def certificate(self) -> x509.Certificate: ...
    @property
    def key(self) -> ec.EllipticCurvePrivateKey: ...


@dataclass(frozen=True)
class Made:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self, password: bytes = b"") -> bytes:
        how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        return self.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def made(
    name: str, by: Signer | None = None, *, days: tuple[float, float] = (-1, 9), names: Sequence[Name] = (),
    uses: Sequence[x509.ObjectIdentifier] = (), curve: type[ec.EllipticCurve] = ec.SECP256R1,
) -> Made:  # fmt: skip
    """A certificate that is valid between two days, counted from now; issued by itself without `by`."""
    key, now = ec.generate_private_key(curve()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer = by.certificate.subject if by else subject
    ends = (now + timedelta(days=day) for day in days)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), *ends)
    if names:
        said = [x509.UniformResourceIdentifier(name.uri("run-1")) for name in names]
        servers = [x509.DNSName(name.id or name.role) for name in names]
        builder = builder.add_extension(x509.SubjectAlternativeName([*said, *servers]), critical=False)
    if uses:
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return Made(builder.sign(by.key if by else key, hashes.SHA256()), key)


def unchecked(folder: Path, one: Made, *names: Name, ca: bytes) -> TlsFiles:
    """The files of a process whose clock, or whose authority, says that they are good."""
    folder.mkdir(parents=True)
    read = {"ca": ca, "cert": one.pem, "key": one.key_pem()}
    for part, content in read.items():
        (folder / f"{part}.pem").write_bytes(content)
    return TlsFiles(folder=folder, me=Peer("run-1", names), **read)
