"""Write hashes.txt: the SHA-256 of each wheel that goes into an image, for both architectures.

Run it after a change of constraints.txt: `python -m scripts.lock`. It asks pip, so pip's own settings say which
indexes and folders are searched. For torch it also asks the public index and the index of torch's CPU builds: each has
a wheel of its own. An index that does not answer is named in a line.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOUND = ROOT / "hashes.txt"
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


def written(packages: Iterable[str], hashes: dict[str, set[str]]) -> str:
    """Return the text of the file."""
    lines = []
    for package in sorted(packages, key=str.lower):
        of_one = sorted(hashes[normal(package.partition("==")[0])])
        lines.append(" \\\n    ".join([package, *(f"--hash=sha256:{one}" for one in of_one)]))
    return HEADER + "\n".join(lines) + "\n"


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


if __name__ == "__main__":
    main()
