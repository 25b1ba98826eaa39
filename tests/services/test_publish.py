"""`make publish` to a real registry: what is there afterwards, read by HTTP and checked by openssl."""

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from scripts.oci import write_chart
from tests.support.registry import BINARY, REASON, blob, manifest, served_registry, tags

ROOT = Path(__file__).parents[2]
VERSION, IMAGE, CHART = "1.2.3", "lab/fedstrata/gps", "lab/fedstrata"
PREDICATE = {"buildDefinition": {"buildType": "https://example.org#make-release"}}
pytestmark = pytest.mark.skipif(BINARY is None, reason=REASON)


def tar_of(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def image(architecture: str, **files: bytes) -> bytes:
    """A docker-archive of one layer."""
    layer = tar_of({f"opt/packages/{name}": content for name, content in files.items()})
    diff = hashlib.sha256(layer).hexdigest()
    config = {"architecture": architecture, "os": "linux", "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}"]}}
    listed = [{"Config": "config.json", "RepoTags": None, "Layers": ["layer.tar"]}]
    return tar_of({
        "manifest.json": json.dumps(listed).encode(), "config.json": json.dumps(config).encode(), "layer.tar": layer,
    })  # fmt: skip


def bill(name: str) -> bytes:
    return json.dumps({"bomFormat": "CycloneDX", "metadata": {"component": {"name": name}}}).encode()


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    packed = folder / f"fedstrata-{VERSION}.tgz"
    packed.write_bytes(tar_of({"fedstrata/Chart.yaml": f"name: fedstrata\nversion: {VERSION}\n".encode()}))
    write_chart(packed, folder / f"fedstrata-{VERSION}-chart.oci.tar", time=0)
    statement = {"_type": "https://in-toto.io/Statement/v1", "subject": [], "predicate": PREDICATE}
    said = {**statement, "predicateType": "https://slsa.dev/provenance/v1"}
    (folder / f"fedstrata-{VERSION}.intoto.json").write_text(json.dumps(said))
    (folder / f"fedstrata-{VERSION}.cdx.json").write_bytes(bill("fedstrata"))
    for architecture in ("amd64", "arm64"):
        content = image(architecture, **{"sbom.cdx.json": bill(architecture)})
        (folder / f"gps-{architecture}.tar").write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with key.pem and key.pub."""
    made, folder = ec.generate_private_key(ec.SECP256R1()), tmp_path_factory.mktemp("keys")
    pem = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(pem)
    (folder / "key.pub").write_bytes(made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return folder


def publish(release: Path, address: str, key: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "FEDSTRATA_SIGNING_KEY"}
    if key is not None:
        environment["FEDSTRATA_SIGNING_KEY"] = str(key)
    words = ["scripts/publish.py", f"{address}/lab", "--release", str(release), "--plain-http"]
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def there(release: Path, keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry that has the signed release."""
    with served_registry(tmp_path_factory.mktemp("registry")) as address:
        done = publish(release, address, keys / "key.pem")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            f"{address}/{name}:{VERSION}@sha256:{digest(address, name)}" for name in (CHART, IMAGE)
        ]
        yield address


def digest(address: str, name: str) -> str:
    return hashlib.sha256(manifest(address, name, VERSION)).hexdigest()


def attached(address: str, name: str, subject: str, kind: str) -> tuple[dict[str, Any], bytes]:
    """The layer's descriptor, and its content. It belongs to the manifest that has this digest."""
    said = json.loads(manifest(address, name, f"sha256-{subject}.{kind}"))
    assert said["subject"]["digest"] == f"sha256:{subject}"
    assert len(manifest(address, name, f"sha256:{subject}")) == said["subject"]["size"]
    (layer,) = said["layers"]
    return layer, blob(address, name, layer["digest"])


def verify(content: bytes, signature: str, keys: Path, tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(content)
    (tmp_path / "raw.sig").write_bytes(base64.b64decode(signature, validate=True))
    words = ["-verify", keys / "key.pub", "-signature", tmp_path / "raw.sig", tmp_path / "content"]
    done = subprocess.run(["openssl", "dgst", "-sha256", *words], capture_output=True, text=True, check=False)
    assert done.stdout == "Verified OK\n"


def test_an_image_has_all_architectures_under_one_tag(there: str) -> None:
    index = json.loads(manifest(there, IMAGE, VERSION))
    found = {each["platform"]["architecture"]: each["digest"] for each in index["manifests"]}
    for architecture, each in found.items():
        config = json.loads(manifest(there, IMAGE, each))["config"]
        assert json.loads(blob(there, IMAGE, config["digest"]))["architecture"] == architecture
    assert set(found) == {"amd64", "arm64"}


def test_each_image_has_the_bill_of_materials_that_it_contains(there: str) -> None:
    for each in json.loads(manifest(there, IMAGE, VERSION))["manifests"]:
        layer, content = attached(there, IMAGE, each["digest"].removeprefix("sha256:"), "sbom")
        assert layer["mediaType"] == "application/vnd.cyclonedx+json"
        assert content == bill(each["platform"]["architecture"])
    assert attached(there, CHART, digest(there, CHART), "sbom")[1] == bill("fedstrata")


@pytest.mark.parametrize("name", [IMAGE, CHART])
def test_the_signature_is_of_the_digest_that_the_registry_has(
    there: str, name: str, keys: Path, tmp_path: Path
) -> None:
    layer, content = attached(there, name, digest(there, name), "sig")
    assert layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
    verify(content, layer["annotations"]["dev.cosignproject.cosign/signature"], keys, tmp_path)
    assert json.loads(content)["critical"] == {
        "identity": {"docker-reference": f"{there}/{name}"},
        "image": {"docker-manifest-digest": f"sha256:{digest(there, name)}"},
        "type": "cosign container image signature",
    }


@pytest.mark.parametrize("name", [IMAGE, CHART])
def test_the_provenance_is_a_signed_attestation_of_this_digest(
    there: str, name: str, keys: Path, tmp_path: Path
) -> None:
    layer, content = attached(there, name, digest(there, name), "att")
    assert layer["annotations"]["predicateType"] == "https://slsa.dev/provenance/v1"
    envelope = json.loads(content)
    statement = base64.b64decode(envelope["payload"], validate=True)
    kind = envelope["payloadType"]
    signed = f"DSSEv1 {len(kind)} {kind} {len(statement)} ".encode() + statement
    verify(signed, envelope["signatures"][0]["sig"], keys, tmp_path)
    said = json.loads(statement)
    assert said["subject"] == [{"name": f"{there}/{name}", "digest": {"sha256": digest(there, name)}}]
    assert said["predicate"] == PREDICATE


def test_without_a_key_nothing_is_signed_and_a_second_time_changes_nothing(release: Path, tmp_path: Path) -> None:
    with served_registry(tmp_path) as address:
        first, second = publish(release, address), publish(release, address)
        assert (first.returncode, first.stdout) == (0, second.stdout), first.stderr
        assert {each.rpartition(".")[2] for each in tags(address, IMAGE) - {VERSION}} == {"sbom"}


def test_what_cannot_be_published_is_said_in_one_line(release: Path, tmp_path: Path) -> None:
    with served_registry(tmp_path) as address:
        done = publish(tmp_path, address)
        assert (done.returncode, done.stderr) == (
            1,
            f"publish: {tmp_path} is no folder of a release; see `make release`\n",
        )
        for path in release.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / "gps-arm64.tar").write_bytes(image("arm64"))
        done = publish(tmp_path, address)
        assert done.returncode == 1
        assert done.stderr.endswith(
            "gps-arm64.tar has no /opt/packages/sbom.cdx.json; build the image anew with scripts/images\n"
        )
    done = publish(release, address)
    assert done.returncode == 1
    assert "connection refused" in done.stderr
    assert done.stderr.count("\n") == 1
