"""The packages of an image: pip installs a wheel only if a lock file has its hash, and `scripts/lock.py` writes it."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts import lock
from tests.support.charts import ROOT

CUPTI, NCCL = "nvidia-cuda-cupti==13.0.85", "nvidia-nccl-cu13==2.29.7"
PIP = f"""#!{sys.executable}
import os, shutil, sys
if "--dry-run" in sys.argv:
    shutil.copy("report.json", sys.argv[sys.argv.index("--report") + 1])
else:
    os.execv(sys.executable, [sys.executable, "-m", "pip", *sys.argv[1:]])
"""
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def wheel(folder: Path, package: str, tag: str) -> str:
    """A wheel whose one module says its tag. Returns its hash as a lock file has it."""
    name, _, version = package.partition("==")
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-{tag}.whl"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name.replace('-', '_')}.py", f"TAG = {tag!r}\n")
        archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(
            f"{stem}.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n"
        )
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return f"--hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The folder of a device image's build, in which pip resolves three packages and finds wheels of them."""
    folder = tmp_path / "source"
    folder.mkdir()
    items = [
        {"metadata": dict(zip(("name", "version"), one.split("=="), strict=True))} for one in ("own==1", CUPTI, NCCL)
    ]
    (folder / "report.json").write_text(json.dumps({"install": items}))
    wheels, lines = tmp_path / "wheels", []
    (folder / "hashes.txt").write_text(f"own==1 {wheel(wheels, 'own==1', 'any')}\n")
    for package, level in ((CUPTI, "2_25"), (NCCL, "2_18")):
        of_one = [wheel(wheels, package, f"manylinux_{level}_{machine}") for machine in MACHINES.values()]
        lines.append(" \\\n    ".join([package, *of_one]))
    (folder / "hashes-cuda.txt").write_text("# A comment.\n" + "\n".join(lines) + "\n")
    executable(tmp_path / "bin" / "pip", PIP)
    return folder


def packages(source: Path, arch: str = "amd64", **more: str) -> subprocess.CompletedProcess[str]:
    wheels = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(source.parent / "wheels")}
    path = f"{source.parent / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = [ROOT / "scripts" / "image-packages", "device", arch, source.parent / "packages"]
    env = {**os.environ, **wheels, "PATH": path, **more}
    return subprocess.run(words, cwd=source, env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("arch", MACHINES)
def test_the_wheels_of_cuda_are_installed_for_the_wanted_architecture(source: Path, arch: str) -> None:
    done = packages(source, arch)
    assert done.returncode == 0, done.stderr
    there = source.parent / "packages"
    assert (there / "own.py").read_text() == "TAG = 'any'\n"
    assert (there / "nvidia_cuda_cupti.py").read_text() == f"TAG = 'manylinux_2_25_{MACHINES[arch]}'\n"
    assert (there / "nvidia_nccl_cu13.py").read_text() == f"TAG = 'manylinux_2_18_{MACHINES[arch]}'\n"
    parts = json.loads((there / "sbom.cdx.json").read_text())["components"]
    assert [part["name"] for part in parts] == ["nvidia-cuda-cupti", "nvidia-nccl-cu13", "own"]


def test_a_wheel_with_another_hash_is_refused(source: Path) -> None:
    lines = [f"{package} --hash=sha256:{'0' * 64}\n" for package in (CUPTI, NCCL)]
    (source / "hashes-cuda.txt").write_text("".join(lines))
    done = packages(source)
    assert done.returncode == 1
    assert f"Expected sha256 {'0' * 64}" in done.stderr
    assert packages(source, UNHASHED="nvidia-cuda-cupti,nvidia-nccl-cu13").returncode == 0


def test_a_package_without_a_hash_is_refused_before_any_is_installed(source: Path) -> None:
    (source / "hashes-cuda.txt").unlink()
    done = packages(source)
    assert done.returncode == 1
    assert done.stderr == (
        f"image-packages: {CUPTI} has no hash; run scripts/lock.py, or build with UNHASHED=nvidia-cuda-cupti\n"
    )
    assert not (source.parent / "packages").exists()


def pylock(*packages: tuple[str, str, str]) -> str:
    """What `uv pip compile --format pylock.toml` prints for packages, each of one wheel."""
    return "\n".join(
        f'[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = [{{ url = "{name}.whl", hashes = {{ sha256 = '
        f'"{sha256}" }} }}]'
        for name, version, sha256 in packages
    )


def test_the_lock_for_cuda_has_what_torch_adds_for_each_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for machine, sha256 in (("x86_64", "b1"), ("aarch64", "a2")):
        found = (("torch", "2.13.0", "c3"), ("nvidia-nvtx", "13.0.85", sha256), ("cuda-pathfinder", "1.9.1", "d4"))
        (tmp_path / machine).write_text(pylock(*found))
    executable(
        tmp_path / "bin" / "uv",
        f'#!/bin/bash\nasked=$(cat); [ "$asked" = torch==2.13.0 ] || exit 1\n'
        f'for word; do case $word in *-manylinux_2_28) cat "{tmp_path}/${{word%-*}}" ;; esac; done\n',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=os.pathsep)
    assert lock.cuda_text("torch==2.13.0", {"torch"}).splitlines()[1:] == [
        "cuda-pathfinder==1.9.1 \\",
        "    --hash=sha256:d4",
        "nvidia-nvtx==13.0.85 \\",
        "    --hash=sha256:a2 \\",
        "    --hash=sha256:b1",
    ]
