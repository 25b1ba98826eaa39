"""Describe the machine and the code that computed a result: the processor, the commit of a checkout, and versions of
packages.
"""

import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def installed(name: str) -> str:
    """Return the version of a package. If the package is missing, return `(not installed)`."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def commit() -> str:
    """Return the commit of the checkout that contains this code. For an installed wheel, return an empty text."""
    if (ROOT / ".git").exists():
        with suppress(OSError, subprocess.SubprocessError):
            words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603  # no input
            return done.stdout.strip()
    return ""


def processor() -> str:
    """Return the processor's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
