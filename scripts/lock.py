"""Write hashes.txt: the SHA-256 of each wheel that goes into an image, for both architectures.

Run it after a change of constraints.txt: `python -m scripts.lock`. It asks pip, so pip's own settings say which
indexes and folders are searched. For torch it also asks the public index and the index of torch's CPU builds: each has
a wheel of its own. An index that does not answer is named in a line.

It also writes hashes-cuda.txt: the further wheels that torch of the public index needs, such as NVIDIA's libraries. For
these wheels it asks uv (`pip install uv`), because uv reads a wheel's requirements without downloading the wheel. Add
the versions in hashes-cuda.txt to constraints.txt. Before a change of torch's version, remove them there: the new torch
may need others.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOUND = ROOT / "hashes.txt"
FOUND_FOR_CUDA = ROOT / "hashes-cuda.txt"
MACHINES = ("x86_64", "aarch64")
TAGS = (
    "manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux2014", "manylinux_2_17", "manylinux2010",
    "manylinux1",
)  # fmt: skip
PYTHON = "3.11"
CPU_BUILDS = ("--index-url", "https://download.pytorch.org/whl/cpu")
HEADER = """\
# The SHA-256 of each wheel in the images, written by scripts/lock.py. Images are built of these alone.
# torch has several: of the public index, and of its CPU builds.
"""
HEADER_FOR_CUDA = """\
# The SHA-256 of each wheel that a device image with torch's CUDA build has in addition, written by scripts/lock.py.
"""


def report(*options: str) -> list[dict[str, object]]:
    """Return what pip would install with these options."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", said, *options], check=True, cwd=ROOT)
        found: list[dict[str, object]] = json.loads(said.read_text())["install"]
        return found


def pinned() -> list[str]:
    """Return the packages of all images, each with its version."""
    found = report("--constraint", "constraints.txt", ".[emulator,s3,traces]")
    said = (item["metadata"] for item in found)
    return [f"{one['name']}=={one['version'].partition('+')[0]}" for one in said if one["name"] != "fedstrata"]


def hashes_of(packages: Sequence[str], machine: str, *options: str) -> dict[str, str]:
    """Return the hash of the wheel that pip takes for each package on one architecture."""
    platforms = [word for tag in TAGS for word in ("--platform", f"{tag}_{machine}")]
    wheels = ("--no-deps", "--only-binary", ":all:", "--python-version", PYTHON, "--target", "unused")
    found = report(*wheels, *platforms, *options, *packages)
    return {item["metadata"]["name"]: item["download_info"]["archive_info"]["hashes"]["sha256"] for item in found}


def cuda_hashes(torch: str, machine: str) -> dict[str, set[str]]:
    """Return the hashes of torch of the public index, and of all that it needs, by package and version."""
    options = ("--python-version", PYTHON, "--python-platform", f"{machine}-{TAGS[0]}", "--only-binary", ":all:")
    command = ["uv", "--no-config", "pip", "compile", "--quiet", "--format", "pylock.toml", *options]
    command += ["--constraint", "constraints.txt", "-"]
    said = subprocess.run(command, check=True, cwd=ROOT, input=torch, stdout=subprocess.PIPE, text=True).stdout
    found = tomllib.loads(said)["packages"]
    return {f"{one['name']}=={one['version']}": {each["hashes"]["sha256"] for each in one["wheels"]} for one in found}


def cuda_text(torch: str, known: Collection[str]) -> str:
    """Return the text of hashes-cuda.txt.

    :param torch: torch and its version
    :param known: the normal names of packages that have their hashes in hashes.txt
    """
    packages, hashes = set[str](), defaultdict[str, set[str]](set)
    for machine in MACHINES:
        for package, found in cuda_hashes(torch, machine).items():
            name = normal(package.partition("==")[0])
            if name not in known:
                packages.add(package)
                hashes[name] |= found
    return written(packages, hashes, header=HEADER_FOR_CUDA)


def written(packages: Iterable[str], hashes: dict[str, set[str]], *, header: str = HEADER) -> str:
    """Return the text of a file of hashes."""
    lines = []
    for package in sorted(packages, key=str.lower):
        of_one = sorted(hashes[normal(package.partition("==")[0])])
        lines.append(" \\\n    ".join([package, *(f"--hash=sha256:{one}" for one in of_one)]))
    return header + "\n".join(lines) + "\n"


def normal(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    packages, hashes = pinned(), defaultdict[str, set[str]](set)
    torch = [package for package in packages if package.startswith("torch==")]
    for machine in MACHINES:
        asked = [(packages, ()), (torch, ("--isolated",)), (torch, ("--isolated", *CPU_BUILDS))]
        for of_whom, options in asked:
            try:
                found = hashes_of(of_whom, machine, *options)
            except subprocess.CalledProcessError:
                if of_whom is packages:
                    raise
                print(f"lock: pip found no torch for {machine} with {' '.join(options)}", file=sys.stderr)
                continue
            for name, sha256 in found.items():
                hashes[normal(name)].add(sha256)
    FOUND.write_text(written(packages, hashes))
    try:
        FOUND_FOR_CUDA.write_text(cuda_text(torch[0], hashes))
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        sys.exit(f"lock: hashes-cuda.txt is unchanged, because uv (`pip install uv`) failed: {error}")


if __name__ == "__main__":
    main()
