"""Push the images and the chart of a release to a registry, with what belongs to them: `make publish REGISTRY=…`.

Needs skopeo, which knows the registry's credentials (`skopeo login`). Images and chart get their bills of materials. If
FEDSTRATA_SIGNING_KEY names a key, they also get a signature, and the provenance as a signed attestation. Their names
and forms follow cosign: `sha256-DIGEST.sbom`, `.sig` and `.att`. Each also names its subject, so that registries with
OCI 1.1 list it.

Nothing is pushed unless all files match SHA256SUMS. A version's tag is pushed last, and never replaced.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from oci import INDEX, TAG, Part, as_json, manifest_of, write_artefact
from provenance import digest_of, signing_key

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("amd64", "arm64")
BILLS = (
    "opt/packages/sbom.cdx.json",
    "opt/more/sbom.cdx.json",
)  # paths in images; the second is only in the emulator's image
CONFIG = "application/vnd.oci.image.config.v1+json"
CYCLONEDX = "application/vnd.cyclonedx+json"
ENVELOPE, STATEMENT = "application/vnd.dsse.envelope.v1+json", "application/vnd.in-toto+json"
SIGNED = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"


@dataclass(frozen=True)
class Artefact:
    """Hold an image or the chart, ready to be pushed: where skopeo finds it, its manifest, and what belongs to it."""

    name: str
    source: str
    manifest: Part
    attached: list[tuple[Part, str, Part]] = field(default_factory=list)  # a manifest, a kind such as `sbom`, a layer


def main() -> None:
    """Run the command. An error is one line, with exit code 1."""
    parser = argparse.ArgumentParser(prog="publish", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "registry", help="the registry, such as registry.example.org/lab; the same as image.registry of the chart"
    )
    parser.add_argument(
        "--release", type=Path, default=_latest(), help="a folder that `make release` has made; default: %(default)s"
    )
    parser.add_argument(
        "--plain-http", action="store_true", help="use no TLS, or do not check the registry's certificate"
    )
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
    if len(charts) != 1 or ":" in str(folder):
        raise OSError(f"{folder} is not the folder of a release; run `make release`, or give --release")
    version = charts[0].name.removeprefix("fedstrata-").removesuffix("-chart.oci.tar")
    statement, bill = folder / f"fedstrata-{version}.intoto.json", folder / f"fedstrata-{version}.cdx.json"
    archives: dict[str, dict[str, Path]] = defaultdict(dict)
    for path in sorted(folder.glob("*.tar")):
        service, _, architecture = path.stem.rpartition("-")
        if architecture in ARCHITECTURES:
            archives[service][architecture] = path
    _check(folder, [charts[0], statement, bill, *(path for each in archives.values() for path in each.values())])
    chart = Artefact("fedstrata", f"oci-archive:{charts[0]}", manifest_of(charts[0]))
    chart.attached.append((chart.manifest, "sbom", Part(CYCLONEDX, bill.read_bytes())))
    artefacts = [chart, *(_image(registry, f"fedstrata/{service}", each) for service, each in archives.items())]
    provenance = json.loads(statement.read_bytes())
    for each in artefacts if key is not None else ():
        repository = f"{registry.address}/{each.name}"
        each.attached.append((each.manifest, "sig", _signature(repository, each.manifest, key)))
        each.attached.append((each.manifest, "att", _attestation(repository, each.manifest, provenance, key)))
    for each in artefacts:
        for subject, kind, layer in each.attached:
            registry.attach(each.name, subject, kind, layer)
        registry.push(each.name, each.source, version, each.manifest)
    return [f"{registry.address}/{each.name}:{version}@sha256:{each.manifest.digest}" for each in artefacts]


def _check(folder: Path, files: list[Path]) -> None:
    """Raise OSError if a file is not the one that `make release` has made."""
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for path in files:
        if sums.get(path.name) != digest_of(path):
            raise OSError(f"{path} differs from its checksum in SHA256SUMS; run `make release` again")


class Registry:
    """Push to a registry with skopeo."""

    def __init__(self, address: str, scratch: Path, *, is_plain: bool) -> None:
        self.address, self.scratch = address.rstrip("/"), scratch
        self._tls = str(not is_plain).lower()

    def push(self, name: str, source: str, tag: str, manifest: Part) -> None:
        """Copy an image or artefact with all its architectures, unless the registry has it under this tag.

        Raises:
            OSError: the registry has something else under this tag.
        """
        target = f"docker://{self.address}/{name}:{tag}"
        there = self._manifest(target)
        if there not in {None, manifest.content}:
            raise OSError(
                f"{self.address}/{name}:{tag} exists with other content, such as from another release, key or version "
                "of skopeo; delete the tag, or give another registry"
            )
        if there is None:
            skopeo("copy", "--quiet", "--all", "--preserve-digests", f"--dest-tls-verify={self._tls}", source, target)

    def attach(self, name: str, subject: Part, kind: str, layer: Part) -> None:
        """Push an artefact of one layer that belongs to a manifest."""
        archive, tag = self.scratch / "attached.tar", f"sha256-{subject.digest}.{kind}"
        rootfs = {"type": "layers", "diff_ids": [f"sha256:{layer.digest}"]}
        config = Part(CONFIG, as_json({"architecture": "", "os": "", "config": {}, "rootfs": rootfs}))
        manifest = write_artefact(archive, config, [layer], tag=tag, subject=subject)
        self.push(name, f"oci-archive:{archive}", tag, manifest)

    def _manifest(self, target: str) -> bytes | None:
        """Return the manifest under a tag of the registry. If the registry has no such tag, or does not answer, return
        None.
        """
        try:
            return skopeo("inspect", "--raw", f"--tls-verify={self._tls}", target)
        except subprocess.CalledProcessError:
            return None


def _image(registry: Registry, name: str, archives: dict[str, Path]) -> Artefact:
    """Return an image with an archive per architecture. Each architecture has its bill of materials."""
    layout = registry.scratch / name.replace("/", "-")
    for architecture, archive in archives.items():
        skopeo("copy", "--quiet", f"docker-archive:{archive}", f"oci:{layout}:{architecture}")
    manifests, bills = [], []
    for described in json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"]:
        archive = archives[described.pop("annotations")[TAG]]
        manifest = Part(described["mediaType"], _blob(layout, described["digest"]))
        config = json.loads(_blob(layout, json.loads(manifest.content)["config"]["digest"]))
        if not archive.stem.endswith(f"-{config['architecture']}"):
            raise OSError(f"{archive} is an image for {config['architecture']}; build it anew with scripts/images")
        platform = {name: config[name] for name in ("architecture", "os", "variant") if name in config}
        manifests.append({**described, "platform": platform})
        bills.append((manifest, "sbom", Part(CYCLONEDX, _bill(archive))))
    index = Part(INDEX, as_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}), {TAG: "all"})
    (layout / "blobs" / "sha256" / index.digest).write_bytes(index.content)
    (layout / "index.json").write_bytes(as_json({"schemaVersion": 2, "manifests": [index.described()]}))
    return Artefact(name, f"oci:{layout}:all", index, bills)


def _blob(layout: Path, digest: str) -> bytes:
    return (layout / "blobs" / digest.replace(":", "/")).read_bytes()


def _bill(archive: Path) -> bytes:
    """Return the bill of materials that an image contains, with the packages of all its bills."""
    found: dict[str, Any] = {}
    try:
        with tarfile.open(archive) as image:
            manifest = image.extractfile("manifest.json")
            for layer in json.load(manifest)[0]["Layers"] if manifest else ():
                with tarfile.open(fileobj=image.extractfile(layer)) as files:
                    for member in files:
                        if (path := member.name.removeprefix("./")) in BILLS and (bill := files.extractfile(member)):
                            found[path] = json.load(bill)
        if BILLS[0] not in found:
            raise OSError(f"{archive} has no /{BILLS[0]}; build the image anew with scripts/images")
        parts = [part for path in BILLS if path in found for part in found[path]["components"]]
        whole = {**found[max(found, key=BILLS.index)], "components": sorted(parts, key=lambda part: str(part["purl"]))}
    except (tarfile.TarError, ValueError, KeyError, IndexError, TypeError) as error:
        raise OSError(
            f"{archive} is not an image that scripts/images has made ({error}); build the image anew"
        ) from None
    return as_json(whole)


def _signature(repository: str, manifest: Part, key: ec.EllipticCurvePrivateKey) -> Part:
    """Return a signature in the form of `cosign sign`."""
    signed = {
        "critical": {
            "identity": {"docker-reference": repository},
            "image": {"docker-manifest-digest": f"sha256:{manifest.digest}"},
            "type": "cosign container image signature",
        },
        "optional": None,
    }
    content = as_json(signed)
    return Part(SIGNED, content, {SIGNATURE: _signed(content, key)})


def _attestation(repository: str, manifest: Part, provenance: dict[str, Any], key: ec.EllipticCurvePrivateKey) -> Part:
    """Return the provenance of a manifest in the form of `cosign attest`: a statement in a signed DSSE envelope."""
    content = as_json({**provenance, "subject": [{"name": repository, "digest": {"sha256": manifest.digest}}]})
    encoded = b"DSSEv1 %d %b %d %b" % (len(STATEMENT), STATEMENT.encode(), len(content), content)
    envelope = {
        "payloadType": STATEMENT,
        "payload": base64.b64encode(content).decode(),
        "signatures": [{"keyid": "", "sig": _signed(encoded, key)}],
    }
    return Part(ENVELOPE, as_json(envelope), {"predicateType": provenance["predicateType"], SIGNATURE: ""})


def _signed(content: bytes, key: ec.EllipticCurvePrivateKey) -> str:
    """Return the base64 of a signature. The same content and key give the same signature (RFC 6979)."""
    return base64.b64encode(key.sign(content, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))).decode()


def skopeo(*words: str) -> bytes:
    """Run skopeo, and return its output. Raises OSError if it is not installed, and CalledProcessError if it fails."""
    program = shutil.which("skopeo")
    if program is None:
        raise OSError("skopeo is not installed; install it (Debian: apt-get install skopeo)")
    return subprocess.run([program, *words], check=True, capture_output=True).stdout


if __name__ == "__main__":
    main()
