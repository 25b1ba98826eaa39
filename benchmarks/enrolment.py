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
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from benchmarks.suite.observed import Process, peaks_mb, processes

TURN_S = 0.1
TIERS = ("gps", "lps", "device")
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


def tell(numbers: Iterable[int], what: signal.Signals) -> None:
    for number in numbers:
        with suppress(ProcessLookupError):
            os.kill(number, what)


class Watch:
    """Limit the processes of a run to a share of a core, and note how much time each has used."""

    def __init__(self, run: "subprocess.Popen[str]", core_share: float) -> None:
        self._run, self._core_share = run, core_share
        self.used: dict[int, Process] = {}

    def until_ended(self) -> None:
        """Stop and continue the processes in turn until the run is over. At the end, no process is left stopped."""
        known: dict[int, Process] = {}
        looked_at = 0.0
        try:
            while self._run.poll() is None:
                if time.monotonic() - looked_at > 1:
                    there, looked_at = processes(self._run.pid), time.monotonic()
                    known = {number: process for number, process in there.items() if process.tier in TIERS}
                    self.used |= known
                if self._core_share < 1:
                    tell(known, signal.SIGCONT)
                    time.sleep(TURN_S * self._core_share)
                    tell(known, signal.SIGSTOP)
                    time.sleep(TURN_S * (1 - self._core_share))
                else:
                    time.sleep(TURN_S)
        finally:
            tell(known, signal.SIGCONT)


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
    peaks = peaks_mb(watch.used.values())
    for tier in TIERS:
        used = [process.cpu_s for process in watch.used.values() if process.tier == tier]
        print(f"{tier:6}  {len(used):9}  {peaks.get(tier, 0):7.0f}  {sum(used):11.1f}")
    most = max(again.values(), default=1)
    print(f"calls made more than once: {len(again)}; one call at most {most} times")
    for (device, call), times in again.most_common(3):
        print(f"  {device} {call}: {times}")
    return 0 if most <= 2 else 1


if __name__ == "__main__":
    sys.exit(main())
