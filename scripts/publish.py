"""Push the images and the chart of a release to a registry, with what belongs to them: `make publish REGISTRY=…`.

Needs skopeo, which knows the registry's credentials (`skopeo login`). Images and chart get their bills of materials. If
FEDSTRATA_SIGNING_KEY names a key, they also get a signature, and the provenance as a signed attestation. Their names
and forms are those of cosign: `sha256-DIGEST.sbom`, `.sig` and `.att`. Each also names its subject, so that registries
with OCI 1.1 list it.
"""

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from oci import INDEX, TAG, Part, as_json, write_artefact
from provenance import signing_key

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("amd64", "arm64")
BILL = "opt/packages/sbom.cdx.json"  # in each image
CONFIG = "application/vnd.oci.image.config.v1+json"
CYCLONEDX = "application/vnd.cyclonedx+json"
ENVELOPE, STATEMENT = "application/vnd.dsse.envelope.v1+json", "application/vnd.in-toto+json"
SIGNED = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"


def main() -> None:
    """Run the command. An error is one line, with exit code 1."""
    parser = argparse.ArgumentParser(prog="publish", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("registry", help="such as registry.example.org/lab, as in image.registry of the chart")
    parser.add_argument(
        "--release", type=Path, default=_latest(), help="a folder of `make release`; default: %(default)s"
    )
    parser.add_argument("--plain-http", action="store_true", help="the registry has no TLS")
    asked = parser.parse_args()
    try:
        named = os.environ.get("FEDSTRATA_SIGNING_KEY")
        key = signing_key(Path(named)) if named else None
        with tempfile.TemporaryDirectory() as scratch:
            registry = Registry(asked.registry, Path(scratch), is_plain=asked.plain_http)
            for reference in published(asked.release, registry, key):
                print(reference)
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr.decode(errors="replace") if isinstance(error, subprocess.CalledProcessError) else error
        sys.exit(f"publish: {' '.join(str(said).split())[-600:]}")


def _latest() -> Path:
    """Return the folder in which `make release` leaves the version of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return ROOT / "dist" / f"fedstrata-{project['version']}"


def published(folder: Path, registry: "Registry", key: ec.EllipticCurvePrivateKey | None) -> list[str]:
    """Push what is in the folder of a release. Return the references with digests."""
    charts = list(folder.glob("fedstrata-*-chart.oci.tar"))
    if len(charts) != 1:
        raise OSError(f"{folder} is no folder of a release; see `make release`")
    version = charts[0].name.removeprefix("fedstrata-").removesuffix("-chart.oci.tar")
    provenance = json.loads((folder / f"fedstrata-{version}.intoto.json").read_text(encoding="utf-8"))
    archives: dict[str, dict[str, Path]] = defaultdict(dict)
    for path in sorted(folder.glob("*.tar")):
        service, _, architecture = path.stem.rpartition("-")
        if architecture in ARCHITECTURES:
            archives[service][architecture] = path
    pushed = {"fedstrata": registry.push("fedstrata", f"oci-archive:{charts[0]}", version)}
    bill = (folder / f"fedstrata-{version}.cdx.json").read_bytes()
    registry.attach("fedstrata", pushed["fedstrata"], "sbom", Part(CYCLONEDX, bill))
    for service, by_architecture in archives.items():
        name = f"fedstrata/{service}"
        pushed[name] = _push_image(registry, name, by_architecture, version)
    for name, manifest in pushed.items() if key is not None else ():
        _sign(registry, name, manifest, key)
        _attest(registry, name, manifest, provenance, key)
    return [f"{registry.address}/{name}:{version}@sha256:{manifest.digest}" for name, manifest in pushed.items()]


class Registry:
    """Push to a registry with skopeo."""

    def __init__(self, address: str, scratch: Path, *, is_plain: bool) -> None:
        self.address, self.scratch = address.rstrip("/"), scratch
        self._tls = str(not is_plain).lower()

    def push(self, name: str, source: str, tag: str) -> Part:
        """Copy an image or artefact with all its architectures. Return its manifest, as the registry has it."""
        target = f"docker://{self.address}/{name}:{tag}"
        skopeo("copy", "--quiet", "--all", "--preserve-digests", f"--dest-tls-verify={self._tls}", source, target)
        raw = skopeo("inspect", "--raw", f"--tls-verify={self._tls}", target)
        return Part(json.loads(raw)["mediaType"], raw)

    def attach(self, name: str, subject: Part, kind: str, layer: Part) -> None:
        """Push an artefact of one layer that belongs to a manifest."""
        archive, tag = self.scratch / "attached.tar", f"sha256-{subject.digest}.{kind}"
        described = {"architecture": "", "os": "", "config": {}}
        config = Part(
            CONFIG, as_json({**described, "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}"]}})
        )
        write_artefact(archive, config, [layer], tag=tag, subject=subject)
        self.push(name, f"oci-archive:{archive}", tag)


def _push_image(registry: Registry, name: str, archives: dict[str, Path], version: str) -> Part:
    """Push the archives of an image, one per architecture, under one tag. Each of them gets its bill of materials."""
    layout = registry.scratch / name.replace("/", "-")
    for architecture, archive in archives.items():
        skopeo("copy", "--quiet", f"docker-archive:{archive}", f"oci:{layout}:{architecture}")
    manifests = []
    for described in json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"]:
        platform = {"architecture": described.pop("annotations")[TAG], "os": "linux"}
        manifests.append({**described, "platform": platform})
    index = Part(INDEX, as_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}), {TAG: "all"})
    (layout / "blobs" / "sha256" / index.digest).write_bytes(index.content)
    (layout / "index.json").write_bytes(as_json({"schemaVersion": 2, "manifests": [index.described()]}))
    pushed = registry.push(name, f"oci:{layout}:all", version)
    for described in manifests:
        blob = layout / "blobs" / described["digest"].replace(":", "/")
        subject = Part(described["mediaType"], blob.read_bytes())
        registry.attach(name, subject, "sbom", Part(CYCLONEDX, _bill(archives[described["platform"]["architecture"]])))
    return pushed


def _bill(archive: Path) -> bytes:
    """Return the bill of materials that an image contains."""
    with tarfile.open(archive) as image:
        manifest = image.extractfile("manifest.json")
        for layer in json.load(manifest)[0]["Layers"] if manifest else ():
            with tarfile.open(fileobj=image.extractfile(layer)) as files:
                if BILL in files.getnames():
                    found = files.extractfile(BILL)
                    return found.read() if found else b""
    raise OSError(f"{archive} has no /{BILL}; build the image anew with scripts/images")


def _sign(registry: Registry, name: str, manifest: Part, key: ec.EllipticCurvePrivateKey) -> None:
    """Attach a signature in the form of `cosign sign`."""
    signed = {
        "critical": {
            "identity": {"docker-reference": f"{registry.address}/{name}"},
            "image": {"docker-manifest-digest": f"sha256:{manifest.digest}"},
            "type": "cosign container image signature",
        },
        "optional": None,
    }
    content = as_json(signed)
    registry.attach(name, manifest, "sig", Part(SIGNED, content, {SIGNATURE: _signature(content, key)}))


def _attest(
    registry: Registry, name: str, manifest: Part, provenance: dict[str, Any], key: ec.EllipticCurvePrivateKey
) -> None:
    """Attach the provenance of this manifest in the form of `cosign attest`: a statement in a signed DSSE envelope."""
    subject = {"name": f"{registry.address}/{name}", "digest": {"sha256": manifest.digest}}
    content = as_json({**provenance, "subject": [subject]})
    encoded = b"DSSEv1 %d %b %d %b" % (len(STATEMENT), STATEMENT.encode(), len(content), content)
    envelope = {
        "payloadType": STATEMENT,
        "payload": base64.b64encode(content).decode(),
        "signatures": [{"keyid": "", "sig": _signature(encoded, key)}],
    }
    kind = {"predicateType": provenance["predicateType"], SIGNATURE: ""}
    registry.attach(name, manifest, "att", Part(ENVELOPE, as_json(envelope), kind))


def _signature(content: bytes, key: ec.EllipticCurvePrivateKey) -> str:
    return base64.b64encode(key.sign(content, ec.ECDSA(hashes.SHA256()))).decode()


def skopeo(*words: str) -> bytes:
    """Run skopeo, and return its output. Raises OSError if it is not installed, and CalledProcessError if it fails."""
    program = shutil.which("skopeo")
    if program is None:
        raise OSError("needs skopeo; install it (Debian: apt-get install skopeo)")
    return subprocess.run([program, *words], check=True, capture_output=True).stdout


if __name__ == "__main__":
    main()
