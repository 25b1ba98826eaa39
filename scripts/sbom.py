#!/usr/bin/env python3
"""Print the Python packages in a folder as a CycloneDX bill of materials.

    sbom.py FOLDER NAME

NAME is the name of the image. The same folder gives the same bytes.
"""

import json
import re
import sys
from importlib.metadata import Distribution, distributions

LONGEST_LICENCE = 80  # characters; longer ones are a licence's text


def bill(folder: str, name: str) -> dict[str, object]:
    """Return the bill of materials of a folder into which pip has installed packages."""
    found = sorted((_component(one) for one in distributions(path=[folder])), key=lambda one: str(one["purl"]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name}},
        "components": found,
    }


def _component(package: Distribution) -> dict[str, object]:
    name = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
    said: dict[str, object] = {
        "type": "library",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version}",
    }
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
