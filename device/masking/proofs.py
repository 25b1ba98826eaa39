"""Signatures for the mask keys of a process's devices, and checks of other devices' keys.

The private key of a process's certificate signs the keys of its devices. Without certificates nothing is signed.
"""

from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from fedstrata.errors import CertificateError
from fedstrata.process.logs import EventLog
from fedstrata.trust.files import CERT, TlsFiles
from fedstrata.trust.key_check import HALF_BYTES, KEYS_REMEMBERED, KeyCheck, signed_text
from fedstrata.v1 import rounds_pb2 as pb

log = EventLog("device")


class Proofs:
    """Sign the keys of this process's devices, and check the keys of other devices."""

    def __init__(self, run_id: str, tls: TlsFiles | None) -> None:
        """Sign keys for this run with the certificate of the TLS files. Raises CertificateError if the certificate's
        key cannot sign.
        """
        self._run_id = run_id
        self._own = _Own.of(tls) if tls is not None else None
        self._looked_at = tls
        self._sign = lru_cache(KEYS_REMEMBERED)(self._signed)
        self.check = KeyCheck(run_id, tls).check

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
        sign.
        """
        try:
            certificate = x509.load_pem_x509_certificate(tls.cert).public_bytes(Encoding.DER)
            return cls(tls, _signer(tls), certificate)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise CertificateError(f"{tls.folder / CERT} cannot sign: {error}; issue it again") from None


def _signer(tls: TlsFiles) -> EllipticCurvePrivateKey:
    key = load_pem_private_key(tls.key, None)
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise CertificateError(f"{tls.folder / CERT} has a key that is not on P-256; fedstrata certs issue makes one")
    return key
