"""`make publish` to a real registry: what is there afterwards, read by HTTP and checked by openssl."""

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from scripts.oci import as_json, write_chart
from tests.support.registry import IS_HERE, REASON, blob, get, manifest, served_registry, tags

ROOT = Path(__file__).parents[3]
VERSION, IMAGE, CHART = "1.2.3", "lab/fedstrata/gps", "lab/fedstrata"
PREDICATE = {"buildDefinition": {"buildType": "https://example.org#make-release"}}
pytestmark = pytest.mark.skipif(not IS_HERE, reason=REASON)


def tar_of(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def image(architecture: str, *layers: Mapping[str, bytes]) -> bytes:
    """A docker-archive with these files."""
    tars = {f"{number}/layer.tar": tar_of(files) for number, files in enumerate(layers)}
    diffs = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in tars.values()]
    config = {"architecture": architecture, "os": "linux", "rootfs": {"type": "layers", "diff_ids": diffs}}
    listed = [{"Config": "config.json", "RepoTags": None, "Layers": list(tars)}]
    return tar_of({"manifest.json": json.dumps(listed).encode(), "config.json": json.dumps(config).encode(), **tars})


def of_packages(bill: bytes) -> dict[str, bytes]:
    """A layer of an image, with the names that tar gives."""
    return {"./opt/packages/sbom.cdx.json": bill}


def bill(name: str) -> bytes:
    """A bill with one package, in the bytes that are published."""
    said = {"bomFormat": "CycloneDX", "components": [{"purl": f"pkg:pypi/{name}@1"}], "metadata": {"component": name}}
    return as_json(said)


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
        (folder / f"gps-{architecture}.tar").write_bytes(image(architecture, of_packages(bill(architecture))))
    checksums(folder)
    return folder


def checksums(folder: Path) -> None:
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    (folder / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))


@pytest.fixture
def copy(release: Path, tmp_path: Path) -> Path:
    """The same release, to be changed."""
    return Path(shutil.copytree(release, tmp_path / "release"))


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
    assert said["artifactType"] == said["layers"][0]["mediaType"]
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
    images = json.loads(manifest(there, IMAGE, VERSION))["manifests"]
    assert len(images) == 2
    for each in images:
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


def state(address: str) -> dict[str, bytes]:
    """All manifests of all tags."""
    return {f"{name}:{tag}": manifest(address, name, tag) for name in (CHART, IMAGE) for tag in tags(address, name)}


def test_publishing_again_changes_nothing(release: Path, keys: Path, there: str) -> None:
    before = state(there)
    done = publish(release, there, keys / "key.pem")
    assert done.returncode == 0, done.stderr
    assert state(there) == before


def test_without_a_key_nothing_is_signed(release: Path, tmp_path: Path) -> None:
    with served_registry(tmp_path) as address:
        assert publish(release, address).returncode == 0
        assert {each.rpartition(".")[2] for each in tags(address, IMAGE) - {VERSION}} == {"sbom"}


def test_the_bill_has_the_packages_of_all_layers_and_of_the_last_bill_of_a_path(copy: Path, tmp_path: Path) -> None:
    layers = [of_packages(bill("old")), of_packages(bill("device")), {"opt/more/sbom.cdx.json": bill("emulator")}]
    (copy / "gps-amd64.tar").write_bytes(image("amd64", *layers))
    (copy / "gps-arm64.tar").unlink()
    (copy / "SHA256SUMS").unlink()
    checksums(copy)
    with served_registry(tmp_path) as address:
        done = publish(copy, address)
        assert done.returncode == 0, done.stderr
        (only,) = json.loads(manifest(address, IMAGE, VERSION))["manifests"]
        said = json.loads(attached(address, IMAGE, only["digest"].removeprefix("sha256:"), "sbom")[1])
    assert [part["purl"] for part in said["components"]] == ["pkg:pypi/device@1", "pkg:pypi/emulator@1"]
    assert said["metadata"] == {"component": "emulator"}


def test_another_release_of_the_same_version_is_refused(copy: Path, keys: Path, there: str) -> None:
    before = state(there)
    (copy / "gps-arm64.tar").unlink()
    done = publish(copy, there, keys / "key.pem")
    assert done.returncode == 1
    assert f"{IMAGE}:{VERSION} exists with other content, such as from another release" in done.stderr
    assert before.items() <= state(there).items()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "gps-arm64.tar: loading tar component manifest.json: unexpected EOF"),
        (image("arm64", {}), "gps-arm64.tar has no /opt/packages/sbom.cdx.json; build the image anew"),
        (
            image("arm64", of_packages(b"{}")),
            "gps-arm64.tar is not an image that scripts/images has made ('components')",
        ),
        (image("amd64", of_packages(bill("x"))), "gps-arm64.tar is an image for amd64; build it anew"),
    ],
    ids=["no archive", "no bill", "another file", "another architecture"],
)
def test_nothing_is_pushed_of_a_release_that_is_not_whole(
    copy: Path, tmp_path: Path, content: bytes, message: str
) -> None:
    (copy / "gps-arm64.tar").write_bytes(content)
    (copy / "SHA256SUMS").unlink()
    checksums(copy)
    with served_registry(tmp_path) as address:
        done = publish(copy, address)
        assert done.returncode == 1
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert json.loads(get(address, "_catalog"))["repositories"] == []


def test_a_folder_without_a_release_a_changed_file_and_a_silent_registry_are_named(copy: Path, tmp_path: Path) -> None:
    with served_registry(tmp_path) as address:
        done = publish(tmp_path, address)
        assert (done.returncode, done.stderr) == (
            1, f"publish: {tmp_path} is not the folder of a release; run `make release`, or give --release\n",
        )  # fmt: skip
    done = publish(copy, address)
    assert done.returncode == 1
    assert "connection refused" in done.stderr
    assert done.stderr.count("\n") == 1
    (copy / "gps-arm64.tar").write_bytes(b"changed")
    done = publish(copy, address)
    assert (done.returncode, done.stderr) == (
        1, f"publish: {copy}/gps-arm64.tar differs from its checksum in SHA256SUMS; run `make release` again\n",
    )  # fmt: skip
