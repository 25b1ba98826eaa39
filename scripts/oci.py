"""A packed chart as an OCI artefact: an image layout in one archive, which skopeo or oras copies to a registry."""

import hashlib
import json
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.cncf.helm.config.v1+json"
CHART = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


def write_artefact(packed: Path, archive: Path, *, time: int) -> None:
    """Write the layout of a packed chart as a tar archive, with the same time (seconds since 1970) for all files."""
    with tarfile.open(packed) as chart:
        file = chart.extractfile("fedstrata/Chart.yaml")
        if file is None:
            raise OSError(f"{packed.name} has no fedstrata/Chart.yaml")
        metadata = yaml.safe_load(file.read())
    blobs: dict[str, bytes] = {}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _blob(blobs, CONFIG, _json(metadata)),
        "layers": [_blob(blobs, CHART, packed.read_bytes())],
    }
    reference = _blob(blobs, MANIFEST, _json(manifest))
    reference["annotations"] = {"org.opencontainers.image.ref.name": str(metadata["version"])}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [reference]}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index), **blobs}
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), time
            tar.addfile(member, BytesIO(content))


def _blob(blobs: dict[str, bytes], media_type: str, content: bytes) -> dict[str, Any]:
    """Keep a blob by its digest. Return its descriptor."""
    digest = hashlib.sha256(content).hexdigest()
    blobs[f"blobs/sha256/{digest}"] = content
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
