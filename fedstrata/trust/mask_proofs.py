"""Signatures for the mask keys of secure aggregation, and the check that a key belongs to its device.

A process signs the mask keys of its devices with the private key of its certificate. The check covers the key itself,
the device's signature of the key, and the certificate with which the device signed. The key is a point on a curve, and
must not be of low order. An LPS checks each key before it puts the key into a roster, and each device checks the
roster. Without certificates, nothing is signed, and only the key itself is checked.
"""

import time
from collections.abc import Callable
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
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from fedstrata.errors import CertificateError, OutdatedError, PayloadError
from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import quoted
from fedstrata.trust.certificates import is_issued_by, uris
from fedstrata.trust.names import Peer
from fedstrata.trust.tls_files import CERT, TlsFiles
from fedstrata.v1 import rounds_pb2 as pb

HALF_BYTES = 32  # size of each half of a signature, r and s
KEYS_REMEMBERED = 4096
ANY_SCALAR = X25519PrivateKey.from_private_bytes(bytes(range(32)))  # multiplies a key to find points of low order
log = EventLog("device")


def signed_text(run_id: str, device_id: str, public_key: bytes) -> bytes:
    """Return the bytes that a device signs to prove that `public_key` is its mask key."""
    return f"fedstrata secure aggregation\0{run_id}\0{device_id}\0".encode() + public_key


class KeyCheck:
    """Check mask keys with this process's current certificate and list of revoked names."""

    def __init__(self, run_id: str, tls: TlsFiles | None, clock: Callable[[], float] = time.time) -> None:
        self._run_id = run_id
        self._tls = tls
        self._clock = clock
        self._check_signature = lru_cache(KEYS_REMEMBERED)(self._signature_checked)

    def check(self, device_id: str, key: pb.MaskKey) -> None:
        """Check that a mask key belongs to this device, and that the device signed the key with a valid certificate.

        Raises:
            PayloadError: no honest device sends such a key.
            OutdatedError: the certificate or its authority is not valid now, or the certificate is revoked or comes
                from an unknown authority. The device may send the key again with a valid certificate.
        """
        _check_point(device_id, key.public_key)
        if self._tls is None:
            return
        if not key.certificate:
            raise PayloadError(f"the mask key of {quoted(device_id)} has no certificate")
        try:
            self._check_certificate(self._tls.newest(), device_id, key)
        except OutdatedError:  # the authority may have been renewed since the last check of the files
            self._check_certificate(self._tls.newest(at_once=True), device_id, key)

    def _check_certificate(self, own: TlsFiles, device_id: str, key: pb.MaskKey) -> None:
        _, peer = _holder(device_id, key.certificate)
        if peer.domain != own.me.domain or not peer.is_("device", device_id):
            raise PayloadError(
                f"the mask key of {quoted(device_id)} has the certificate of {peer} of {quoted(peer.domain)}"
            )
        self._check_signature(device_id, key.public_key, key.signature, key.certificate)
        whose, now_s = f"the certificate for the mask key of {quoted(device_id)}", self._clock()
        periods = _valid_periods(own.ca, key.certificate)
        if not periods:
            raise OutdatedError(f"{whose} has an unknown issuer")
        if not any(begin_s <= now_s <= end_s for begin_s, end_s in periods):
            is_early = any(now_s < begin_s for begin_s, _ in periods)
            raise OutdatedError(f"{whose} {'is not valid yet' if is_early else 'has expired'}")
        revoked = own.revoked()
        if revoked.revokes(("device",), device_id) or revoked.why(peer):
            raise OutdatedError(f"{whose} is revoked")

    def _signature_checked(self, device_id: str, public_key: bytes, signature: bytes, certificate: bytes) -> None:
        holder = _holder(device_id, certificate)[0].public_key()
        if not isinstance(holder, EllipticCurvePublicKey) or not isinstance(holder.curve, SECP256R1):
            raise PayloadError(f"the mask key of {quoted(device_id)} is signed by a key that is not on curve P-256")
        halves = (int.from_bytes(half, "big") for half in (signature[:HALF_BYTES], signature[HALF_BYTES:]))
        try:
            holder.verify(
                encode_dss_signature(*halves), signed_text(self._run_id, device_id, public_key), ECDSA(SHA256())
            )
        except InvalidSignature:
            raise PayloadError(f"the mask key of {quoted(device_id)} is not signed by this device") from None


class Proofs(KeyCheck):
    """Sign the keys of this process's devices, and check the keys of other devices."""

    def __init__(self, run_id: str, tls: TlsFiles | None) -> None:
        """Sign keys for this run with the certificate of the TLS files. Raises CertificateError if the certificate's
        key cannot sign.
        """
        super().__init__(run_id, tls)
        self._own = _Own.of(tls) if tls is not None else None
        self._looked_at = tls
        self._sign = lru_cache(KEYS_REMEMBERED)(self._signed)

    def _newest(self) -> "_Own | None":
        """Return the newest certificate of this process that can sign. Without certificates, return None."""
        if self._own is None or (newest := self._own.tls.newest()) is self._looked_at:
            return self._own
        self._looked_at = newest
        try:
            self._own = _Own.of(newest)
        except CertificateError as error:
            log.warning("certificate_signs_nothing", reason=f"{error}; keys for masks are signed by the one before")
        return self._own

    def key_of(self, device_id: str, public_key: bytes) -> pb.MaskKey:
        """Return the key of one of this process's devices, signed with the process's current certificate."""
        own = self._newest()
        return pb.MaskKey(public_key=public_key) if own is None else self._sign(own, device_id, public_key)

    def _signed(self, own: "_Own", device_id: str, public_key: bytes) -> pb.MaskKey:
        r, s = decode_dss_signature(own.signer.sign(signed_text(self._run_id, device_id, public_key), ECDSA(SHA256())))
        signature = r.to_bytes(HALF_BYTES, "big") + s.to_bytes(HALF_BYTES, "big")
        return pb.MaskKey(public_key=public_key, signature=signature, certificate=own.certificate)


@dataclass(frozen=True, eq=False)
class _Own:
    """Hold a certificate of this process, and the private key that signs the mask keys of its devices."""

    tls: TlsFiles
    signer: EllipticCurvePrivateKey
    certificate: bytes  # DER

    @classmethod
    def of(cls, tls: TlsFiles) -> "_Own":
        """Return the certificate in these files, and its private key. Raises CertificateError if the key cannot
        sign, or if others would not accept the certificate.
        """
        try:
            certificate = x509.load_pem_x509_certificate(tls.cert).public_bytes(Encoding.DER)
            key = load_pem_private_key(tls.key, None)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise CertificateError(f"{tls.folder / CERT} cannot sign: {error}; issue it again") from None
        if not _valid_periods(tls.ca, certificate):  # the certificates between the two do not fit into a roster
            raise CertificateError(
                f"{tls.folder / CERT} comes from an intermediate authority, so secure_aggregation cannot use it; add "
                "the intermediate authority to the ca.pem of each process"
            )
        if isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1):
            return cls(tls, key, certificate)
        raise CertificateError(f"{tls.folder / CERT} has a key that is not on P-256; fedstrata certs issue makes one")


@lru_cache(KEYS_REMEMBERED)
def _check_point(device_id: str, public_key: bytes) -> None:
    try:
        ANY_SCALAR.exchange(X25519PublicKey.from_public_bytes(public_key))
    except ValueError:
        raise PayloadError(
            f"the mask key of {quoted(device_id)} is a point of low order, which hides nothing"
        ) from None


@lru_cache(KEYS_REMEMBERED)
def _holder(device_id: str, der: bytes) -> tuple[x509.Certificate, Peer]:
    """Parse a certificate in DER, and return the certificate and its names. Raises PayloadError if the bytes are not
    the certificate of a device.
    """
    try:
        found = x509.load_der_x509_certificate(der)
        _ = found.public_key()  # raises an error if the point is not on the curve
        return found, Peer.of_uris(uris(found))
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm, CertificateError) as error:
        raise PayloadError(
            f"the mask key of {quoted(device_id)} does not have the certificate of a device: {error}"
        ) from None


@lru_cache(KEYS_REMEMBERED)
def _valid_periods(authorities: bytes, der: bytes) -> list[tuple[float, float]]:
    """Return the times for which a certificate and an authority that issued it are both valid, one entry per such
    authority. Times are in seconds since 1970. If none of the authorities issued the certificate, the list is empty.
    """
    found = x509.load_der_x509_certificate(der)
    above = [one for one in x509.load_pem_x509_certificates(authorities) if is_issued_by(found, one)]
    return [
        (
            max(found.not_valid_before_utc, one.not_valid_before_utc).timestamp(),
            min(found.not_valid_after_utc, one.not_valid_after_utc).timestamp(),
        )
        for one in above
    ]
