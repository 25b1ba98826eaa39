"""The machine and the packages of a measurement."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.suite.programs import ProgramError, output_of
from emulator.results.machine import commit, installed, processor

PACKAGES = ("fedstrata", "grpcio", "numpy", "protobuf", "torch")
PEERS = ("flwr", "ray", "torch", "grpcio")
ASK = "import sys; from importlib.metadata import version; print(*(version(name) for name in sys.argv[1:]))"


def described(peers: Path | None, folder: Path) -> dict[str, Any]:
    """Return the machine, the versions and the date."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit() or "unknown",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in PACKAGES},
        "peers": peer_versions(peers, folder) if peers else {},
    }


def peer_versions(peers: Path, folder: Path) -> dict[str, str]:
    """Return the versions of the packages in the peers' environment; empty if one of them is missing."""
    printed = _printed([str(peers), "-c", ASK, *PEERS], folder).split()
    return dict(zip(PEERS, printed, strict=True)) if len(printed) == len(PEERS) else {}


def one_minute_load() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _printed(command: Sequence[str], folder: Path) -> str:
    try:
        return output_of(command, timeout_s=30, folder=folder).strip()
    except (ProgramError, OSError):
        return "unknown"
