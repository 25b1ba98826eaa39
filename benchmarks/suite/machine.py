"""Where and with what was measured."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.suite.programs import ROOT, ProgramError, output_of

PACKAGES = ("fedstrata", "grpcio", "numpy", "protobuf", "torch")
PEERS = ("flwr", "ray", "torch", "grpcio")
ASK = "import sys; from importlib.metadata import version; print(*(version(name) for name in sys.argv[1:]))"


def described(peers: Path | None, folder: Path) -> dict[str, Any]:
    """Return the machine, the versions and the date."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _printed(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], folder),
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int((_field("/proc/meminfo", "MemTotal") or "0").split()[0]) / 1e6, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _installed(name) for name in PACKAGES},
        "peers": peer_versions(peers, folder) if peers else {},
    }


def peer_versions(peers: Path, folder: Path) -> dict[str, str]:
    """Return the versions of the packages in the peers' environment; empty if one of them is missing."""
    printed = _printed([str(peers), "-c", ASK, *PEERS], folder).split()
    return dict(zip(PEERS, printed, strict=True)) if len(printed) == len(PEERS) else {}


def one_minute_load() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def _printed(command: Sequence[str], folder: Path) -> str:
    try:
        return output_of(command, timeout_s=30, folder=folder).strip()
    except (ProgramError, OSError):
        return "unknown"


def _field(file: str, name: str) -> str:
    path = Path(file)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
