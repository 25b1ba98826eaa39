"""The private key of a board. A board is a machine of a fleet, and runs a device in one run after another. For each
run, the run's authority issues a certificate for this key. The key never leaves the board.
"""

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedstrata.errors import CertificateError, PayloadError
from fedstrata.trust.authority import key_pem
from fedstrata.trust.tls_files import KEY, write_private


def key_of(folder: Path) -> tuple[bytes, bytes]:
    """Return the private and the public key of a board, in PEM, from the folder of its key. If the folder has no key,
    create one.

    Raises:
        CertificateError: the file of the key is damaged.
    """
    if not (folder / KEY).exists():
        write_private(folder, {KEY: key_pem(ec.generate_private_key(ec.SECP256R1()))})
    private = (folder / KEY).read_bytes()
    try:
        public = serialization.load_pem_private_key(private, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CertificateError(f"{folder / KEY} is damaged; remove it, so that the board makes a new key") from None
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return private, public.public_bytes(serialization.Encoding.PEM, form)


def public_key_of(pem: bytes) -> ec.EllipticCurvePublicKey:
    """Parse the public key that a board sent. Raises PayloadError if the key is damaged, or is not on curve P-256."""
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise PayloadError("the key that a board sent is damaged; see the log of the board's agent") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise PayloadError(
            "the key that a board sent is not on curve P-256; remove the key on the board, so that it makes a new one"
        )
    return key
