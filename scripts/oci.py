"""OCI artefacts as image layouts in one archive, which skopeo or oras copies to a registry."""

import hashlib
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
HELM_CONFIG = "application/vnd.cncf.helm.config.v1+json"
HELM_CHART = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
TAG = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Part:
    """Hold the config or a layer of an artefact."""

    media_type: str
    content: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def described(self) -> dict[str, Any]:
        """Return the descriptor of this part."""
        said = {"mediaType": self.media_type, "digest": f"sha256:{self.digest}", "size": len(self.content)}
        return {**said, "annotations": dict(self.annotations)} if self.annotations else said


def write_chart(packed: Path, archive: Path, *, time: int) -> None:
    """Write the artefact of a packed chart."""
    with tarfile.open(packed) as chart:
        file = chart.extractfile("fedstrata/Chart.yaml")
        if file is None:
            raise OSError(f"{packed.name} is not the packed chart: it has no fedstrata/Chart.yaml")
        metadata = yaml.safe_load(file.read())
    config, layer = Part(HELM_CONFIG, as_json(metadata)), Part(HELM_CHART, packed.read_bytes())
    write_artefact(archive, config, [layer], tag=str(metadata["version"]), time=time)


def write_artefact(
    archive: Path, config: Part, layers: Sequence[Part], *, tag: str, time: int = 0, subject: Part | None = None
) -> Part:
    """Write a layout as a tar archive, with the same time (seconds since 1970) for all files. Return the manifest.

    The artefact is attached to the manifest `subject`, if there is one (OCI 1.1).
    """
    said = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config.described()}
    said["layers"] = [layer.described() for layer in layers]
    if subject is not None:
        said |= {"subject": subject.described(), "artifactType": layers[0].media_type}
    manifest = Part(MANIFEST, as_json(said), {TAG: tag})
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest.described()]}
    files = {"oci-layout": as_json({"imageLayoutVersion": "1.0.0"}), "index.json": as_json(index)}
    files |= {f"blobs/sha256/{part.digest}": part.content for part in (config, *layers, manifest)}
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), time
            tar.addfile(member, BytesIO(content))
    return manifest


def manifest_of(archive: Path) -> Part:
    """Return the manifest of an artefact that `write_artefact` has written."""
    with tarfile.open(archive) as tar:
        files = {member.name: content.read() for member in tar if (content := tar.extractfile(member))}
    (described,) = json.loads(files["index.json"])["manifests"]
    return Part(described["mediaType"], files[f"blobs/{described['digest'].replace(':', '/')}"])


def as_json(value: Any) -> bytes:
    """Return a value as JSON. The same value gives the same bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
