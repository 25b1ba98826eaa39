"""By what a device knows that a key for masks is another device's, and not one that its LPS made up.

The key of a process's certificate signs the keys of its devices. Without certificates nothing is signed or checked.
"""

from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from fedstrata.errors import CertificateError, PayloadError
from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import quoted
from fedstrata.trust.files import CERT, TlsFiles
from fedstrata.trust.names import Peer
from fedstrata.v1 import rounds_pb2 as pb

log = EventLog("device")
HALF_BYTES = 32  # of a signature: r, and s


class Proofs:
    """Vouches for the keys of this process's devices, and checks those of others."""

    def __init__(self, run_id: str, tls: TlsFiles | None) -> None:
        """Raises CertificateError where the certificate's key cannot sign."""
        self._run_id = run_id
        self._own = _Own.of(tls) if tls is not None else None
        self._looked_at = tls
        self._sign = lru_cache(maxsize=4096)(self._signed)
        self._check = lru_cache(maxsize=4096)(self._checked)
        self._holder = lru_cache(maxsize=1024)(self._holder_of)

    def _newest(self, *, at_once: bool = False) -> "_Own | None":
        """This process's certificate as it is now; what was signed or found good by another is forgotten."""
        if self._own is None or (newest := self._own.tls.newest(at_once=at_once)) is self._looked_at:
            return self._own
        self._looked_at = newest
        try:
            self._own = _Own.of(newest)
        except CertificateError as error:
            log.warning("certificate_signs_nothing", reason=f"{error}; keys for masks are signed by the one before")
        else:
            for cache in (self._sign, self._check, self._holder):
                cache.cache_clear()
        return self._own

    def key_of(self, device_id: str, public_key: bytes) -> pb.MaskKey:
        """The key of one of this process's devices, vouched for by the certificate that it has now."""
        own = self._newest()
        return pb.MaskKey(public_key=public_key) if own is None else self._sign(own, device_id, public_key)

    def _signed(self, own: "_Own", device_id: str, public_key: bytes) -> pb.MaskKey:
        r, s = decode_dss_signature(own.signer.sign(self._said(device_id, public_key), ECDSA(SHA256())))
        signature = r.to_bytes(HALF_BYTES, "big") + s.to_bytes(HALF_BYTES, "big")
        return pb.MaskKey(public_key=public_key, signature=signature, certificate=own.certificate)

    def check(self, member: pb.RosterMember, certificate: bytes) -> None:
        """Refuse a key that is not vouched for by a certificate of the device. Raises PayloadError."""
        said = member.device_id, member.public_key, member.signature, certificate
        if (own := self._newest()) is None:
            return
        try:
            self._check(own, *said)
        except PayloadError:  # or by an authority that has come since this process looked last
            if (newest := self._newest(at_once=True)) is own or newest is None:
                raise
            self._check(newest, *said)

    def _said(self, device_id: str, public_key: bytes) -> bytes:
        return f"fedstrata secure aggregation\0{self._run_id}\0{device_id}\0".encode() + public_key

    def _checked(self, own: "_Own", device_id: str, public_key: bytes, signature: bytes, certificate: bytes) -> None:
        key, peer = self._holder(own, certificate)
        if not peer.is_("device", device_id):
            raise PayloadError(f"the key for masks of {quoted(device_id)} is vouched for by {peer}; this LPS lies")
        halves = (int.from_bytes(half, "big") for half in (signature[:HALF_BYTES], signature[HALF_BYTES:]))
        try:
            key.verify(encode_dss_signature(*halves), self._said(device_id, public_key), ECDSA(SHA256()))
        except InvalidSignature:
            raise PayloadError(f"the key for masks of {quoted(device_id)} is not its own; this LPS lies") from None

    def _holder_of(self, own: "_Own", certificate: bytes) -> tuple[EllipticCurvePublicKey, Peer]:
        """The key of a certificate by an authority of this run, and who holds it. Raises PayloadError."""
        try:
            found = x509.load_der_x509_certificate(certificate)
            key, names = found.public_key(), found.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            peer = Peer.of_uris(names.value.get_values_for_type(x509.UniformResourceIdentifier))
        except (ValueError, UnsupportedAlgorithm, x509.ExtensionNotFound, CertificateError) as error:
            raise PayloadError(f"a key for masks comes with what is no certificate of a device: {error}") from None
        is_ours = any(_is_issued_by(found, authority) for authority in own.authorities)
        if not is_ours or peer.domain != own.tls.me.domain:
            raise PayloadError(f"a key for masks is vouched for by {peer} of {quoted(peer.domain)}, whom nobody knows")
        if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
            raise PayloadError(f"a key for masks is vouched for by {peer} with a key that is not on P-256")
        return key, peer


@dataclass(frozen=True, eq=False)
class _Own:
    """A certificate of this process, as one who signs and checks has it."""

    tls: TlsFiles
    signer: EllipticCurvePrivateKey
    certificate: bytes  # DER
    authorities: list[x509.Certificate]

    @classmethod
    def of(cls, tls: TlsFiles) -> "_Own":
        """Raises CertificateError where the certificate's key cannot sign."""
        try:
            certificate = x509.load_pem_x509_certificate(tls.cert).public_bytes(Encoding.DER)
            return cls(tls, _signer(tls), certificate, x509.load_pem_x509_certificates(tls.ca))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise CertificateError(f"{tls.folder / CERT} cannot sign: {error}; issue it again") from None


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _signer(tls: TlsFiles) -> EllipticCurvePrivateKey:
    key = load_pem_private_key(tls.key, None)
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise CertificateError(f"{tls.folder / CERT} has a key that is not on P-256; fedstrata certs issue makes one")
    return key
