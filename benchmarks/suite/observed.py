"""`fedstrata run`, watched from outside: seconds, CPU and memory of its processes, from /proc and the GPS's log."""

import json
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.suite.programs import ProgramError, output_of, python, started

TIERS = ("gps", "lps", "device", "emulator")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Process:
    """Hold the tier of a process, its CPU seconds so far, and its peak memory (VmHWM)."""

    tier: str
    cpu_s: float
    peak_mb: float


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Hold the measurements of one run."""

    round_s: float  # median time between the ends of two global rounds
    cpu_s: dict[str, float]  # per global round, by tier
    peak_mb: dict[str, float]  # VmHWM of the largest process, by tier


def seconds_of_a_round(
    experiment: Path,
    folder: Path,
    *,
    settings: Iterable[str],
    warm_up: int,
    timeout_s: float,
    words: Sequence[str] = (),
) -> float:
    """Return the median time from the close of a global round to the next close, without the first `warm_up` rounds.

    The first round has no close before it, so `warm_up` is at least 1.
    """
    output_of([*_run(experiment, folder, settings), *words], timeout_s=timeout_s, folder=folder)
    return _median_of_rounds(folder, warm_up)


def observe(experiment: Path, folder: Path, *, settings: Iterable[str] = (), timeout_s: float = 120) -> Observed:
    """Run an experiment in a new folder, and look at its processes at every round."""
    command = _run(experiment, folder, settings)
    snapshots, peaks = dict[int, dict[int, Process]](), dict[str, float]()
    for told, pid in _events(command, timeout_s=timeout_s, log=folder / "errors.log"):
        if told.get("phase") == "training" and told["global_round"] not in snapshots:
            snapshots[told["global_round"]] = processes(pid)
        elif told.get("phase") in {"evaluation", "completed"}:
            peaks = peaks_mb(processes(pid).values()) or peaks
    round_s = _median_of_rounds(folder, warm_up=1)
    return Observed(round_s=round_s, cpu_s=_cpu_of_a_round(snapshots), peak_mb=peaks)


def peaks_of_run(command: Sequence[str], *, timeout_s: float, log: Path) -> dict[str, float]:
    """Run an experiment, and return by tier the peak memory of the largest process, until the end of the evaluation."""
    seen: dict[int, Process] = {}
    for told, pid in _events(command, timeout_s=timeout_s, log=log):
        if told.get("phase") in {"training", "evaluation", "completed"}:
            seen |= processes(pid)
    return peaks_mb(seen.values())


def _events(command: Sequence[str], *, timeout_s: float, log: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Run `fedstrata run`, and yield each event of the run with the process id of this command."""
    with started([*command, "--json"], timeout_s=timeout_s, log=log) as process:
        for line in process.stdout or ():
            yield json.loads(line), process.pid


def _run(experiment: Path, folder: Path, settings: Iterable[str]) -> list[str]:
    """Return the command of a run. It has no TLS, because the peers have none either."""
    words = [word for setting in settings for word in ("--set", setting)]
    return python("-m", "emulator", "run", str(experiment), "--out", str(folder / "run"), "--no-tls", *words)


def _median_of_rounds(folder: Path, warm_up: int) -> float:
    closed = _closed(folder / "run" / "logs" / "gps.log")
    return statistics.median([after - before for before, after in pairwise(closed[warm_up - 1 :])])


def _cpu_of_a_round(snapshots: dict[int, dict[int, Process]]) -> dict[str, float]:
    """Return the mean CPU seconds of a global round, by tier. `snapshots` has the processes as they were when each
    global round was first seen. Round 0, in which the run starts, is left out.
    """
    seen = sorted(number for number in snapshots if number)
    if len(seen) < 2:
        raise ProgramError(f"the run was over before all rounds were seen: {sorted(snapshots)}")
    first, last = snapshots[seen[0]], snapshots[seen[-1]]
    spent = dict.fromkeys(TIERS, 0.0)
    for pid, process in last.items():
        if pid in first:
            spent[process.tier] += (process.cpu_s - first[pid].cpu_s) / (seen[-1] - seen[0])
    return spent


def _closed(log: Path) -> list[float]:
    """Return the times at which global rounds were closed."""
    events = (json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{"))
    return [
        datetime.fromisoformat(each["time"]).timestamp() for each in events if each["event"] == "global_round_closed"
    ]


def processes(root: int) -> dict[int, Process]:
    """Return the processes of a run that belong to a tier, by process id. `root` is the id of `fedstrata run`."""
    found = {}
    for pid in _family(root):
        tier, stat, status = _module(_read(pid, "cmdline").split("\0")), _read(pid, "stat"), _read(pid, "status")
        if tier and "VmHWM:" in status:
            fields = stat.rpartition(")")[2].split()
            cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
            found[pid] = Process(tier=tier, cpu_s=cpu_s, peak_mb=_mb(status, "VmHWM"))
    return found


def peaks_mb(of: Iterable[Process]) -> dict[str, float]:
    """Return, by tier, the peak memory of the largest process, in MB."""
    peaks: dict[str, float] = {}
    for each in of:
        peaks[each.tier] = max(each.peak_mb, peaks.get(each.tier, 0.0))
    return peaks


def resident_mb(pid: int, field: str = "VmHWM") -> float:
    """Return a size from /proc/PID/status, in MB of 10⁶ bytes: by default the peak memory."""
    return _mb(_read(pid, "status"), field)


def _mb(status: str, field: str) -> float:
    return int(status.split(f"{field}:")[1].split(maxsplit=1)[0]) * 1024 / 1e6


def _family(root: int) -> list[int]:
    """Return a process and all its descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _read(int(entry.name), "stat")):
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    family, newest = [root], {root}
    while newest:
        newest = {child for child, parent in parents.items() if parent in newest}
        family += newest
    return family


def _module(words: Sequence[str]) -> str:
    """Return the tier of a process `python -m TIER …`; an empty text for any other process."""
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    return module if module in TIERS else ""


def _read(pid: int, file: str) -> str:
    """Return the text of a file of /proc; an empty text if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
