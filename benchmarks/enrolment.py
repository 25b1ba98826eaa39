"""A run of thousands of devices: time by phase, memory by process, and how often each call was made.

    python -m benchmarks.enrolment --devices 10000
    python -m benchmarks.enrolment --devices 2000 --core-share 0.05

Runs FedAvg on ten LPSs for three rounds, with 60 examples per device, but at most 60,000 in all: 6 examples for each of
10,000 devices. With `--core-share` each process of the run gets only this share of a core: signals stop and continue it
ten times a second. Prints the seconds of each phase, and for each tier the number of processes, the peak resident size
of the largest process, and the processor time of all. Fails if the run does not complete, or if a device made one call
more than twice.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

TURN_S = 0.1
TIERS = ("gps", "lps", "device")
TICKS = os.sysconf("SC_CLK_TCK")
FILE = """
name: enrolment
data: {{name: {data}}}
partition: {{kind: iid, devices: {devices}, examples_per_device: {examples}}}
model: {{name: mlp, hidden: [32]}}
method: fedavg
topology: {{lps: {lps}}}
training: {{global_rounds: 3, lps_rounds_per_global_round: 1}}
"""
CUT = {f"{call}_cut": call for call in ("fetch", "submit", "exchange", "answer", "announcement")}


def processes(ancestor: int) -> dict[int, str]:
    """Return the tier of each process of the run, by its number."""
    parents, tiers = {}, {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            number = int(entry.name)
            parents[number] = int(_stat(number)[1])
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            tiers[number] = next((word for word in words if word in TIERS), "") if "-m" in words else ""
    return {number: tier for number, tier in tiers.items() if tier in TIERS and ancestor in _above(number, parents)}


def _above(number: int, parents: dict[int, int]) -> Iterator[int]:
    while (number := parents.get(number, 0)) > 0:
        yield number


def _stat(number: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the process's state on."""
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()


def cpu_seconds(number: int) -> float:
    return sum(map(int, _stat(number)[11:13])) / TICKS


def peak_mb(number: int) -> float:
    said = Path(f"/proc/{number}/status").read_text()
    return next(int(line.split()[1]) for line in said.splitlines() if line.startswith("VmHWM")) / 1024


def tell(numbers: dict[int, str], what: signal.Signals) -> None:
    for number in numbers:
        with suppress(ProcessLookupError):
            os.kill(number, what)


class Watch:
    """Limit the processes of a run to a share of a core, and note how much time each has used."""

    def __init__(self, run: "subprocess.Popen[str]", core_share: float) -> None:
        self._run, self._core_share = run, core_share
        self.used: dict[int, tuple[str, float, float]] = {}  # by process: tier, peak MB, seconds of processor

    def until_ended(self) -> None:
        """Stop and continue the processes in turn until the run is over. At the end, no process is left stopped."""
        known: dict[int, str] = {}
        looked_at = 0.0
        try:
            while self._run.poll() is None:
                if time.monotonic() - looked_at > 1:
                    known, looked_at = processes(self._run.pid), time.monotonic()
                    self._note(known)
                if self._core_share < 1:
                    tell(known, signal.SIGCONT)
                    time.sleep(TURN_S * self._core_share)
                    tell(known, signal.SIGSTOP)
                    time.sleep(TURN_S * (1 - self._core_share))
                else:
                    time.sleep(TURN_S)
        finally:
            tell(known, signal.SIGCONT)

    def _note(self, known: dict[int, str]) -> None:
        for number, tier in known.items():
            with suppress(OSError, StopIteration):
                self.used[number] = (tier, peak_mb(number), cpu_seconds(number))


def tries(logs: Path) -> Counter[tuple[str, str]]:
    """Return how often each call was repeated, by device and call."""
    made: Counter[tuple[str, str]] = Counter()
    cut: Counter[tuple[str, str]] = Counter()
    for log in logs.glob("device*.log"):
        for line in log.read_text().splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                who = str(event.get("device"))
                if event["event"] == "answered_at_last":
                    made[who, event["call"]] = max(made[who, event["call"]], event["tries"])
                elif event["event"] in CUT:
                    cut[who, f"{CUT[event['event']]} of round {event.get('round', '')}"] += 1
    return made + Counter({call: times + 1 for call, times in cut.items()})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--lps", type=int, default=10)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--core-share", type=float, default=1.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "run.yaml"), Path(folder, "out")
        file.write_text(FILE.format(**vars(asked), examples=min(60, 60_000 // asked.devices)))
        command = [sys.executable, "-m", "emulator", "run", str(file), "--out", str(out), "--quiet"]
        began = time.monotonic()
        run = subprocess.Popen(command, text=True, env={**os.environ, "FEDSTRATA_LOG_LEVEL": "debug"})
        watch = Watch(run, asked.core_share)
        watch.until_ended()
        took_s = time.monotonic() - began
        if run.returncode:
            return run.returncode
        again = tries(out / "logs")
        summary = json.loads((out / "summary.json").read_text())
    print(f"{asked.devices} devices, {asked.core_share:g} of a core a process: {took_s:.1f} s from command to end")
    print("  ".join(f"{phase} {seconds:.1f} s" for phase, seconds in summary["wall_seconds"].items()))
    print("tier    processes  peak MB  processor s")
    by_tier = defaultdict(list)
    for tier, peak, seconds in watch.used.values():
        by_tier[tier].append((peak, seconds))
    for tier in TIERS:
        used = by_tier[tier]
        peaks, seconds = [peak for peak, _ in used], sum(each for _, each in used)
        print(f"{tier:6}  {len(used):9}  {max(peaks, default=0):7.0f}  {seconds:11.1f}")
    most = max(again.values(), default=1)
    print(f"calls made more than once: {len(again)}; one call at most {most} times")
    for (device, call), times in again.most_common(3):
        print(f"  {device} {call}: {times}")
    return 0 if most <= 2 else 1


if __name__ == "__main__":
    sys.exit(main())
