"""The machine and the packages of a measurement."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.suite.programs import ProgramError, output_of
from fedstrata.process.machine import commit, installed, processor

PACKAGES = ("fedstrata", "grpcio", "numpy", "protobuf", "torch")
PEERS = ("flwr", "ray", "nvflare", "blazefl", "torch", "grpcio")
ASK = """import sys, platform; from importlib import metadata
print("Python", platform.python_version())
for each in metadata.distributions(): print(each.name, each.version)"""


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
    """Return the versions of Python and of the packages in the peers' environment; empty without any."""
    try:
        printed = output_of([str(peers), "-c", ASK], timeout_s=30, folder=folder)
    except (ProgramError, OSError):
        return {}
    versions = dict(line.split(" ", 1) for line in printed.splitlines())
    found = {name: versions[name] for name in PEERS if name in versions}
    return {"Python": versions["Python"], **found} if found else {}


def one_minute_load() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2)
