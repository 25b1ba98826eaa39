"""Write the origin of a release: its provenance, as an in-toto statement in SLSA's form, and signatures of files."""

import base64
import hashlib
import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

NO_HOME = "urn:fedstrata:no-home"


def statement(files: Sequence[Path], *, commit: str, home: str | None, has_images: bool) -> dict[str, Any]:
    """Return the provenance of files that `make release` has made from a commit (SLSA 1.0).

    It names no time and no machine, so that the same commit gives the same bytes.
    """
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": file.name, "digest": {"sha256": digest_of(file)}} for file in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{home or NO_HOME}#make-release",
                "externalParameters": {"home": home, "images": has_images},
                "internalParameters": {"python": platform.python_version(), "setuptools": version("setuptools")},
                "resolvedDependencies": [{"uri": f"git+{home or NO_HOME}", "digest": {"gitCommit": commit}}],
            },
            "runDetails": {"builder": {"id": f"{home or NO_HOME}#whoever-holds-the-signing-key"}},
        },
    }


def signing_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a file. Raises OSError if it cannot be read, or is no plain key on the curve P-256."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise OSError(
            f"FEDSTRATA_SIGNING_KEY {path}: {error}; give a P-256 key as a PEM file without a password"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise OSError(
            f"FEDSTRATA_SIGNING_KEY {path} is not on the curve P-256; make one with openssl ecparam -name prime256v1"
        )
    return key


def sign(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write FILE.sig: the base64 of an ECDSA signature over the file's SHA-256, for `openssl dgst -verify`."""
    signature = key.sign(file.read_bytes(), ec.ECDSA(hashes.SHA256()))
    file.with_name(f"{file.name}.sig").write_bytes(base64.b64encode(signature))


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def written(document: dict[str, Any], path: Path) -> None:
    """Write a document as JSON. The same document gives the same bytes."""
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")
