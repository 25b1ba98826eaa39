"""The bill of materials of an image: what is in it, and the same bytes each time."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[3] / "scripts" / "sbom.py"


def install(folder: Path, name: str, version: str, *lines: str) -> None:
    """As pip leaves a package, for who looks at what is installed."""
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(
        "\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines])
    )


def bill(folder: Path) -> str:
    words = [sys.executable, str(SCRIPT), str(folder), "fedstrata-gps"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_each_package_is_named_as_its_index_does_with_version_and_licence(tmp_path: Path) -> None:
    install(tmp_path, "PyYAML", "6.0.2", "License: MIT")
    install(tmp_path, "ruamel.yaml_clib", "0.2", "License-Expression: BSD-3-Clause")
    install(tmp_path, "grpcio", "1.85.1", "License: " + "a whole text " * 20)
    said: Any = json.loads(bill(tmp_path))
    assert (said["bomFormat"], said["metadata"]["component"]["name"]) == ("CycloneDX", "fedstrata-gps")
    assert [(one["purl"], one.get("licenses")) for one in said["components"]] == [
        ("pkg:pypi/grpcio@1.85.1", None),
        ("pkg:pypi/pyyaml@6.0.2", [{"license": {"name": "MIT"}}]),
        ("pkg:pypi/ruamel-yaml-clib@0.2", [{"expression": "BSD-3-Clause"}]),
    ]


def test_the_same_packages_give_the_same_bytes(tmp_path: Path) -> None:
    for folder, names in (("one", ("a", "b")), ("other", ("b", "a"))):
        for name in names:
            install(tmp_path / folder, name, "1")
    assert bill(tmp_path / "one") == bill(tmp_path / "other")
