"""The authority of a run or a release. It issues certificates, by which processes identify each other."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedstrata.errors import CertificateError
from fedstrata.process.regular_files import check_regular
from fedstrata.trust.certificates import certificates_in, dns_names, is_issued_by, uris
from fedstrata.trust.names import CERTIFICATE_DAYS, SERVERS, Name, Peer, check_domain, server_name
from fedstrata.trust.tls_files import CA, CA_KEY, CERT, KEY, write_private

AUTHORITY_DAYS = 3650
CLOCKS_DIFFER = timedelta(minutes=10)  # a board's clock may be this much behind the issuer's clock
MOST_NAMES = 64  # most names of a certificate; gRPC refuses one of 9 KB, which has about 250 names


@dataclass(frozen=True, kw_only=True)
class Authority:
    """Sign the certificates of one run or release. `domain` is the run's id or the release's name, and part of each
    name in the certificates.
    """

    domain: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    before: tuple[x509.Certificate, ...] = ()  # earlier authorities that are still trusted

    @classmethod
    def new(cls, domain: str, days: int = AUTHORITY_DAYS) -> Self:
        """Create an authority with a new key, valid for `days` days. Raises CertificateError if `domain` is not allowed
        in certificates.
        """
        check_domain(domain)
        key, subject = ec.generate_private_key(ec.SECP256R1()), _subject(f"fedstrata {domain}")
        public = key.public_key()
        builder = _builder(subject, subject, public, datetime.now(UTC) + timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        name = x509.UniformResourceIdentifier(f"spiffe://{domain}")
        builder = builder.add_extension(x509.SubjectAlternativeName([name]), critical=False)
        return cls(domain=domain, certificate=builder.sign(key, hashes.SHA256()), key=key)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the authority from a folder. Raises CertificateError if a file is missing or damaged, or if key and
        certificate do not match.
        """
        try:
            for name in (CA, CA_KEY):
                check_regular(folder / name)
            certificates = certificates_in((folder / CA).read_bytes())
            key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), None)
            own = [number for number, one in enumerate(certificates) if one.public_key() == key.public_key()]
        except OSError as error:
            raise CertificateError(
                f"no authority in {folder}: {error.filename}: {error.strerror}; create one with fedstrata certs init"
            ) from None
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise CertificateError(
                f"{folder / CA} or {CA_KEY} is damaged, or the key has a password; put the right files back, or remove "
                f"{folder}, and create a new authority with fedstrata certs init"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not own:
            raise CertificateError(f"{folder / CA_KEY} is not the key of {CA} in this folder; put the right key back")
        certificate, before = certificates[own[0]], tuple(certificates[own[0] + 1 :])
        return cls(domain=_domain(certificate, folder / CA), certificate=certificate, key=key, before=before)

    def files(self) -> dict[str, bytes]:
        """Return the authority's files by name: the private key and the trusted certificates."""
        return {CA_KEY: key_pem(self.key), CA: self.trusted()}

    def trusted(self) -> bytes:
        """Return the content of `ca.pem`: this authority's certificate. If the predecessor is still trusted, its
        certificate follows.
        """
        return b"".join(map(_pem, (self.certificate, *self.before)))

    def succeeded(self) -> Self:
        """Return a new authority that replaces this authority in the same domain. The new `ca.pem` has both
        certificates, so that both authorities are trusted.

        Raises:
            CertificateError: the predecessor of this authority is still trusted.
        """
        if self.before:
            raise CertificateError(
                f"the authority of {self.domain!r} has been renewed already, and the old one is still trusted; "
                "run fedstrata certs renew, and then fedstrata certs renew --authority drop"
            )
        valid = self.certificate.not_valid_after_utc - self.certificate.not_valid_before_utc
        return replace(type(self).new(self.domain, valid.days), before=(self.certificate,))

    @property
    def days_left(self) -> int:
        """The number of whole days for which the authority is still valid; negative if it has expired."""
        return (self.certificate.not_valid_after_utc - datetime.now(UTC)).days

    def alone(self) -> Self:
        """Return a copy of this authority that no longer trusts the predecessor's certificates."""
        return replace(self, before=())

    def replace_in(self, folder: Path) -> None:
        """Replace the authority in a folder by this authority. The old authority stays in use until both files are
        written.
        """
        files = self.files()
        write_private(folder, {name: files[name] for name in (CA, CA_KEY)})

    def has_issued(self, certificate: x509.Certificate) -> bool:
        """Return whether this authority has signed the certificate."""
        return is_issued_by(certificate, self.certificate)

    def save(self, folder: Path) -> None:
        """Write key and certificate, in this order, to a folder that only its owner may open."""
        write_private(folder, self.files())

    def issue(
        self,
        names: Collection[Name],
        folder: Path,
        *,
        days: int = CERTIFICATE_DAYS,
        server_domain: str = "",
        durable: bool = True,
    ) -> None:
        """Write a new key and a certificate with these names to a folder. With `durable`, flush each file to disk.
        Raises CertificateError like `issued`.
        """
        write_private(folder, self.issued(names, days=days, server_domain=server_domain), durable=durable)

    def issued(
        self, names: Collection[Name], *, days: int = CERTIFICATE_DAYS, server_domain: str = ""
    ) -> dict[str, bytes]:
        """Return a new private key, a certificate with these names, and the trusted certificates, by file name.

        A server's certificate also has the server's DNS name, such as `lps-0`. With `server_domain` it also has the DNS
        name `lps-0.SERVER_DOMAIN`.

        Raises:
            CertificateError: there are no names, or more names than a peer accepts.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self.certified(names, key.public_key(), days=days, server_domain=server_domain)
        return {KEY: key_pem(key), CERT: certificate, CA: self.trusted()}

    def certified(
        self,
        names: Collection[Name],
        key: ec.EllipticCurvePublicKey,
        *,
        days: int = CERTIFICATE_DAYS,
        server_domain: str = "",
    ) -> bytes:
        """Return a certificate for a public key with these names, in PEM. It ends no later than the authority. Raises
        CertificateError like `issued`.
        """
        if not 0 < len(names) <= MOST_NAMES:
            raise CertificateError(
                f"a certificate must have 1 to {MOST_NAMES} names, not {len(names)}; give the process devices with "
                "consecutive numbers, which share one name"
            )
        until = min(datetime.now(UTC) + timedelta(days=days), self.certificate.not_valid_after_utc)
        builder = _builder(_subject(_common_name(names)), self.certificate.subject, key, until)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        uris = [x509.UniformResourceIdentifier(name.uri(self.domain)) for name in sorted(names, key=str)]
        servers = [x509.DNSName(name) for name in server_names(names, server_domain)]
        builder = builder.add_extension(x509.SubjectAlternativeName([*uris, *servers]), critical=False)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if servers else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        issuer = _key_identifier(self.certificate)
        return _pem(builder.add_extension(issuer, critical=False).sign(self.key, hashes.SHA256()))


@dataclass(frozen=True, kw_only=True)
class Issued:
    """Describe an issued certificate: where it is, which names it has, and when it expires."""

    place: str  # a folder, or the name of a Secret
    peer: Peer
    until: datetime
    certificate: x509.Certificate

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the certificate in a folder, even if it has expired. Raises CertificateError if the certificate is
        missing or damaged, or if Fedstrata did not issue it.
        """
        path = folder / CERT
        try:
            return cls.parse(path.read_bytes(), str(folder))
        except OSError as error:
            raise CertificateError(f"{path}: {error.strerror}; issue it with fedstrata certs issue") from None
        except ValueError:
            raise CertificateError(f"{path} is damaged; remove its folder, and issue it again") from None

    @classmethod
    def parse(cls, pem: bytes, place: str) -> Self:
        """Parse a certificate in PEM. Raises ValueError if the certificate is damaged, and CertificateError if
        Fedstrata did not issue it.
        """
        certificate = certificates_in(pem)[0]
        peer, until = Peer.of_uris(uris(certificate)), certificate.not_valid_after_utc
        return cls(place=place, peer=peer, until=until, certificate=certificate)

    @property
    def server_domain(self) -> str:
        """The domain of the server's DNS name in the certificate; empty if the certificate has no such domain."""
        return max(dns_names(self.certificate), key=len, default="").partition(".")[2]

    @property
    def days_left(self) -> int:
        """The number of whole days for which the certificate is still valid; negative if it has expired."""
        return (self.until - datetime.now(UTC)).days


def server_names(names: Collection[Name], server_domain: str = "") -> list[str]:
    """Return the DNS names that a certificate with these names gets. Only servers have DNS names. With `server_domain`,
    each server has one DNS name without the domain and one with it.
    """
    servers = sorted((name for name in names if name.role in SERVERS), key=str)
    return [server_name(name, domain) for name in servers for domain in dict.fromkeys(("", server_domain))]


def _subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _common_name(names: Collection[Name]) -> str:
    first = min(map(str, names))[:40]
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, until: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(datetime.now(UTC) - CLOCKS_DIFFER).not_valid_after(until)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_identifier(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Return the identifier of the authority's key. If the authority's certificate does not state an identifier,
    compute it from the public key.
    """
    try:
        own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _domain(certificate: x509.Certificate, path: Path) -> str:
    named = uris(certificate)
    if len(named) != 1 or not named[0].startswith("spiffe://"):
        raise CertificateError(f"{path} was not made by fedstrata certs init: it names no run")
    return check_domain(named[0].removeprefix("spiffe://"))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key in PEM, without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
