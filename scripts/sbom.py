#!/usr/bin/env python3
"""Print the Python packages in a folder as a CycloneDX bill of materials.

    sbom.py FOLDER NAME

NAME is the name of the image. The same folder gives the same bytes.
"""

import json
import re
import sys
from importlib.metadata import Distribution, distributions

LONGEST_LICENCE = 80  # characters; a longer field has the text of a licence, not its name


def bill(folder: str, name: str) -> dict[str, object]:
    """Return the bill of materials of a folder into which pip has installed packages."""
    return _bill({"type": "container", "name": name}, [_component(one) for one in distributions(path=[folder])])


def locked_bill(hashes: str, version: str) -> dict[str, object]:
    """Return the bill of materials of the content of hashes.txt: all packages of others in images without CUDA."""
    blocks = [line.split() for line in hashes.replace("\\\n", "").splitlines() if line and not line.startswith("#")]
    components = []
    for pinned, *wheels in blocks:
        name, _, build = pinned.partition("==")
        digests = [{"alg": "SHA-256", "content": wheel.removeprefix("--hash=sha256:")} for wheel in wheels]
        components.append({**_library(name, build), "hashes": digests})
    return _bill({"type": "application", "name": "fedstrata", "version": version}, components)


def _bill(component: dict[str, object], components: list[dict[str, object]]) -> dict[str, object]:
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component},
        "components": sorted(components, key=lambda one: str(one["purl"])),
    }


def _library(package: str, version: str) -> dict[str, object]:
    name = re.sub(r"[-_.]+", "-", package).lower()
    return {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}


def _component(package: Distribution) -> dict[str, object]:
    said = _library(package.metadata["Name"], package.version)
    expression, text = package.metadata.get("License-Expression"), package.metadata.get("License") or ""
    if expression:
        said["licenses"] = [{"expression": expression}]
    elif text and len(text) <= LONGEST_LICENCE:
        said["licenses"] = [{"license": {"name": text}}]
    return said


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("sbom.py: expected FOLDER and NAME")
    print(json.dumps(bill(*sys.argv[1:]), indent=2))
