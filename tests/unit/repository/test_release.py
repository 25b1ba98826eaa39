"""What `make release` leaves: archives with the same bytes each time, that are what they say."""

import base64
import gzip
import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from helm_python import Chart, lint, parse_set_string

from scripts.archives import unpack
from scripts.provenance import signing_key

ROOT = Path(__file__).parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
P_256, SM2 = bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a811ccf5501822d")  # how keys name these curves
RESTS = (".tar.gz", ".tgz", "-chart.oci.tar", ".cdx.json", ".intoto.json")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "FEDSTRATA_SIGNING_KEY"}
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a release is made from a git repository")


def release(out: Path, *more: str, **environment: str) -> Path:
    words = ["scripts/release.py", "--without-images", "--out", out, "--home", "https://example.org/fedstrata", *more]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env={**ENVIRONMENT, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = ec.generate_private_key(ec.SECP256R1())
    path = tmp_path_factory.mktemp("key") / "key.pem"
    path.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


@pytest.fixture(scope="module")
def released(key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed release."""
    return release(tmp_path_factory.mktemp("signed"), "--without-site", FEDSTRATA_SIGNING_KEY=str(key))


@pytest.fixture(scope="module")
def chart(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed chart, unpacked."""
    return unpack(released / f"fedstrata-{VERSION}.tgz", tmp_path_factory.mktemp("chart"))


@pytest.mark.runs
def test_a_release_is_the_same_bytes_each_time_and_signed_only_with_a_key(released: Path, tmp_path: Path) -> None:
    again = release(tmp_path, "--without-site")
    names = {"SHA256SUMS", *(f"fedstrata-{VERSION}{rest}" for rest in RESTS)}
    assert names | {f"fedstrata-{VERSION}-py3-none-any.whl"} == {path.name for path in again.iterdir()}
    assert {path.name for path in released.iterdir()} == {path.name for path in again.iterdir()} | {"SHA256SUMS.sig"}
    for path in again.iterdir():
        assert path.read_bytes() == (released / path.name).read_bytes(), path.name


def test_the_checksums_are_those_of_the_files(released: Path) -> None:
    lines = (released / "SHA256SUMS").read_text().splitlines()
    assert len(lines) == 6
    for line in lines:
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((released / name).read_bytes()).hexdigest() == digest


def test_the_bill_of_materials_is_valid_and_has_the_packages_of_the_lock_file(released: Path) -> None:
    text = (released / f"fedstrata-{VERSION}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = {part["name"]: part for part in json.loads(text)["components"]}
    locked = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "hashes.txt").read_text(), re.MULTILINE)
    assert {name: part["version"] for name, part in found.items()} == {
        re.sub(r"[-_.]+", "-", name).lower(): version for name, version in locked
    }
    digests = {each["content"] for part in found.values() for each in part["hashes"]}
    assert digests == set(re.findall(r"--hash=sha256:([0-9a-f]{64})", (ROOT / "hashes.txt").read_text()))


def test_the_provenance_names_the_commit_and_every_file(released: Path) -> None:
    said = json.loads((released / f"fedstrata-{VERSION}.intoto.json").read_text())
    assert (said["_type"], said["predicateType"]) == (
        "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1",
    )  # fmt: skip
    for subject in said["subject"]:
        content = (released / subject["name"]).read_bytes()
        assert subject["digest"] == {"sha256": hashlib.sha256(content).hexdigest()}
    others = {"SHA256SUMS", "SHA256SUMS.sig", f"fedstrata-{VERSION}.intoto.json"}
    assert {subject["name"] for subject in said["subject"]} == {path.name for path in released.iterdir()} - others
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    (source,) = said["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source == {"uri": "git+https://example.org/fedstrata", "digest": {"gitCommit": head.stdout.strip()}}


DOCKER = """#!/bin/sh
case $1 in
    buildx) echo "$*" >>{calls}
            git -C {clone} -c user.name=a -c user.email=a@example.org commit --quiet --allow-empty --message later ;;
    save) : >"$3" ;;
esac
"""


@pytest.mark.runs
@pytest.mark.timeout(300)  # makes another release
def test_a_release_is_of_the_commit_at_its_start(tmp_path: Path) -> None:
    """A program in place of docker commits to the repository while the images are built."""
    clone, calls, docker = tmp_path / "clone", tmp_path / "calls", tmp_path / "bin" / "docker"
    git = ("git", "-C", clone, "-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    shutil.copytree(ROOT / "scripts", clone / "scripts", dirs_exist_ok=True)  # what is tested may not be committed yet
    subprocess.run([*git, "commit", "--quiet", "--all", "--allow-empty", "--message", "scripts"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    docker.parent.mkdir()
    docker.write_text(DOCKER.format(calls=calls, clone=clone))
    docker.chmod(0o755)
    words = [sys.executable, clone / "scripts" / "release.py", "--without-site", "--out", tmp_path / "out"]
    path = f"{docker.parent}:{os.environ['PATH']}"
    subprocess.run(words, env={**ENVIRONMENT, "PATH": path, "FEDSTRATA_BUILDER": "docker"}, check=True)
    said = json.loads((tmp_path / "out" / f"fedstrata-{VERSION}" / f"fedstrata-{VERSION}.intoto.json").read_text())
    (source,) = said["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": head}
    assert re.findall(r"REVISION=(\S+)", calls.read_text()) == [head[:12]] * 3
    images = {
        name["name"].rpartition("-")[0] for name in said["subject"] if re.search(r"-(amd|arm)64\.tar$", name["name"])
    }
    assert images == {"gps", "lps", "device"}


@pytest.mark.parametrize(("code", "is_error"), [(1, True), (2, True), (3, False)])
def test_only_a_machine_without_a_builder_makes_a_release_without_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, *, is_error: bool
) -> None:
    script = tmp_path / "scripts" / "images"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\nexit {code}\n")
    script.chmod(0o755)
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module = importlib.import_module("release")
    expected = pytest.raises(OSError, match=f"exit code {code}") if is_error else nullcontext()
    with expected:
        module._images(tmp_path, tmp_path, 0, "0" * 40, ["--arch", "arm"])


def openssl(*words: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["openssl", *map(str, words)], capture_output=True, check=False, **options)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_openssl_verifies_the_signature_of_the_checksums(released: Path, key: Path, tmp_path: Path) -> None:
    public, raw, sums = tmp_path / "key.pub", tmp_path / "raw.sig", tmp_path / "SHA256SUMS"
    assert openssl("ec", "-in", key, "-pubout", "-out", public).returncode == 0
    shutil.copy(released / "SHA256SUMS", sums)
    raw.write_bytes(base64.b64decode((released / "SHA256SUMS.sig").read_bytes(), validate=True))
    check = ("dgst", "-sha256", "-verify", public, "-signature", raw, sums)
    assert openssl(*check).stdout == b"Verified OK\n"
    sums.write_bytes(sums.read_bytes() + b"0" * 64 + b"  more\n")
    assert openssl(*check).returncode == 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_key_that_openssl_has_made_is_read(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    assert openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key).returncode == 0
    assert signing_key(key).curve.name == "secp256r1"


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    pkcs8 = (PrivateFormat.PKCS8, NoEncryption())
    other_curve = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.DER, *pkcs8).replace(P_256, SM2)
    named = b"-----BEGIN PRIVATE KEY-----\n%b-----END PRIVATE KEY-----\n" % base64.encodebytes(other_curve)
    for made, message in (
        (ec.generate_private_key(ec.SECP384R1()), "is not on the curve P-256"),
        (ed25519.Ed25519PrivateKey.generate(), "is not on the curve P-256"),
        (b"no key", "; give a P-256 key as a PEM file without a password"),
        (named, "Curve .* is not supported; give a P-256 key as a PEM file without a password"),
    ):
        key.write_bytes(made if isinstance(made, bytes) else made.private_bytes(Encoding.PEM, *pkcs8))
        with pytest.raises(OSError, match=message):
            signing_key(key)


def test_the_artefact_is_the_packed_chart_under_its_digest(released: Path) -> None:
    with tarfile.open(released / f"fedstrata-{VERSION}-chart.oci.tar") as archive:
        files = {member.name: content.read() for member in archive if (content := archive.extractfile(member))}
    blobs = {f"sha256:{name.rpartition('/')[2]}": content for name, content in files.items() if "/" in name}
    assert all(f"sha256:{hashlib.sha256(content).hexdigest()}" == digest for digest, content in blobs.items())
    (reference,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blobs[reference["digest"]])
    assert reference["annotations"] == {"org.opencontainers.image.ref.name": VERSION}
    assert json.loads(blobs[manifest["config"]["digest"]])["version"] == VERSION
    (layer,) = manifest["layers"]
    assert blobs[layer["digest"]] == (released / f"fedstrata-{VERSION}.tgz").read_bytes()


@pytest.mark.runs
@pytest.mark.timeout(300)  # builds the site twice
def test_the_site_is_packed_with_its_search_and_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    name = f"fedstrata-{VERSION}-docs"
    one, two = (release(tmp_path / which) / f"{name}.zip" for which in ("one", "two"))
    assert {f"{name}/index.html", f"{name}/searchindex.js"} <= set(zipfile.ZipFile(one).namelist())
    assert one.read_bytes() == two.read_bytes()


def test_the_source_archive_holds_what_is_committed(released: Path) -> None:
    with tarfile.open(released / f"fedstrata-{VERSION}.tar.gz") as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(["git", "ls-tree", "-r", "--name-only", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    committed = {name for name in listed.stdout.decode().splitlines() if not name.startswith((".ci/", ".gitignore"))}
    assert committed
    assert committed - there == set()


def test_an_archive_names_nobody_and_has_one_time(released: Path) -> None:
    committed = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, check=True)
    for suffix in ("tar.gz", "tgz"):
        content = gzip.decompress((released / f"fedstrata-{VERSION}.{suffix}").read_bytes())
        assert b"root" not in content[:512]
        with tarfile.open(released / f"fedstrata-{VERSION}.{suffix}") as archive:
            assert {member.mtime for member in archive} == {int(committed.stdout)}
            assert {(member.uid, member.uname) for member in archive} == {(0, "")}


def test_helm_reads_the_packed_chart_and_finds_nothing_to_mend(released: Path, chart: Path) -> None:
    with Chart.load_archive((released / f"fedstrata-{VERSION}.tgz").read_bytes()) as loaded:
        assert loaded.name == "fedstrata"
        assert loaded.schema is not None
    assert lint(chart, strict=True)["messages"] == []
    assert not (chart / "ci").exists()


def test_the_chart_says_where_it_is_from_and_how_it_looks(chart: Path) -> None:
    metadata = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert metadata["home"] == "https://example.org/fedstrata"
    assert base64.b64decode(metadata["icon"].partition("base64,")[2]).startswith(b"<svg ")
    assert metadata["annotations"]["artifacthub.io/license"] == "Apache-2.0"
    assert "federated-learning" in metadata["keywords"]


def test_the_command_of_the_charts_readme_gives_all_that_the_chart_demands(chart: Path) -> None:
    (command,) = re.findall(r"^helm install .*", (chart / "README.md").read_text(), re.MULTILINE)
    (given,) = re.findall(r" --set (\S+)", command)
    with Chart.load(chart) as loaded:
        loaded.render(parse_set_string(given), name="demo")


def at(values: Any, name: str) -> Any:
    for key in name.split("."):
        values = values[key]
    return values


def test_the_charts_readme_has_a_row_with_default_and_meaning_for_every_value(chart: Path) -> None:
    text = (chart / "values.yaml").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| `(.*)` \| (.+) \|$", (chart / "README.md").read_text(), re.MULTILINE)
    assert ("ports.grpc", "50051", "For calls between processes.") in rows
    assert ("gps.podDisruptionBudget.enabled", "true", "Whether a drain of the GPS's node has to wait.") in rows
    keys_with_values = re.findall(r"^ *(\w+): +\S", text, re.MULTILINE)
    assert [name.rpartition(".")[2] for name, _, _ in rows if name != "networkPolicy.metricsFrom"] == keys_with_values
    values = yaml.safe_load(text)
    for name, default, _ in rows:
        assert yaml.safe_load(default) == at(values, name), name
