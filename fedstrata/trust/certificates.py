"""The content and the validity of certificates, read with the library `cryptography`.

Importing this module takes 60 ms and 9 MB, so a process without TLS does not import it.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedstrata.errors import CertificateError

Extension = TypeVar("Extension", bound=x509.ExtensionType)
CURVES = SECP256R1, SECP384R1
SHOWN_REMEMBERED = 4096
AS_CALLER = {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}


def parsed(pem: bytes, path: Path) -> list[x509.Certificate]:
    """Parse the certificates in `pem`, the content of the file `path`. If they are damaged, raise CertificateError with
    the name of the file.
    """
    try:
        return certificates_in(pem)
    except ValueError:
        raise CertificateError(f"{path} is damaged; copy it again, or issue it again") from None


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """Parse certificates in PEM. Raises ValueError if they are damaged."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except x509.InvalidVersion as error:  # not a ValueError
        raise ValueError(str(error)) from None


def is_key_of(key: bytes, certificate: x509.Certificate) -> bool:
    """Return whether a private key in PEM, without a password, belongs to a certificate."""
    try:
        return load_pem_private_key(key, None).public_key() == certificate.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def uris(certificate: x509.Certificate) -> list[str]:
    """Return the URIs in a certificate. Raises CertificateError if its extensions cannot be read."""
    return _alternative_names(certificate, x509.UniformResourceIdentifier)


def dns_names(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names in a certificate. Only a server's certificate has DNS names."""
    return _alternative_names(certificate, x509.DNSName)


def _alternative_names(
    certificate: x509.Certificate, kind: type[x509.UniformResourceIdentifier] | type[x509.DNSName]
) -> list[str]:
    names = _extension(certificate, x509.SubjectAlternativeName)
    return [] if names is None else names.get_values_for_type(kind)


def _extension(certificate: x509.Certificate, kind: type[Extension]) -> Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise CertificateError(f"the certificate's extensions cannot be read: {error}; issue it again") from None


def why_unusable(chain: Sequence[x509.Certificate], authorities: Collection[x509.Certificate]) -> str | None:
    """Return why a server would refuse a caller with this certificate now; None if the server would accept the caller.
    Raises CertificateError if the certificate's extensions cannot be read.

    `chain` has the caller's certificate, then further certificates that the caller shows. `authorities` are the
    authorities that the server trusts.
    """
    now, own = datetime.now(UTC), chain[0]
    if own.not_valid_after_utc < now:
        return "certificate has expired"
    if own.not_valid_before_utc > now:
        return "certificate is not yet valid"
    uses = _extension(own, x509.ExtendedKeyUsage)
    if uses is not None and AS_CALLER.isdisjoint(uses):
        return "certificate is not for callers (client authentication)"
    if not _is_key_for_grpc(own.public_key()):
        return "its key is neither an RSA key nor on curve P-256 or P-384, so no TLS connection of gRPC can use it"
    valid = [one for one in authorities if one.not_valid_before_utc <= now <= one.not_valid_after_utc]
    return None if _is_vouched_for(chain, valid) else "no authority that is valid now has issued it"


def _is_key_for_grpc(key: object) -> bool:
    return isinstance(key, RSAPublicKey) or (isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, CURVES))


@lru_cache(SHOWN_REMEMBERED)
def standing(chain: bytes, authorities: bytes) -> tuple[datetime, bool]:
    """Return when a certificate expires, and whether the authorities vouch for it.

    `chain` has, in PEM, the certificate, then further certificates that its holder has shown. The authorities, also in
    PEM, vouch for a certificate if one of them has signed it, directly or through the further certificates.

    Raises:
        CertificateError: the chain cannot be read.
    """
    try:
        shown = certificates_in(chain)
    except ValueError:
        raise CertificateError("the caller's certificate cannot be read") from None
    return shown[0].not_valid_after_utc, _is_vouched_for(shown, x509.load_pem_x509_certificates(authorities))


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether the certificate names this authority as its issuer, and the authority has signed it."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _is_vouched_for(chain: Sequence[x509.Certificate], authorities: Collection[x509.Certificate]) -> bool:
    trusted, others = set(authorities), set(chain[1:])
    while found := {one for one in others if any(is_issued_by(one, above) for above in trusted)}:
        trusted |= found
        others -= found
    return any(is_issued_by(chain[0], above) for above in trusted)
