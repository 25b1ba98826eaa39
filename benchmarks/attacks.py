"""Attacks on a run of ten devices, by who has a certificate and who has none, and what the others felt of each.

    python -m benchmarks.attacks --rounds 600 --seconds 2

Real processes on 127.0.0.1; each attack lasts so many seconds at most and ends by itself. Two runs, a quiet one and one
under attack: the table says how many rounds a second the honest devices closed while each attack went on, and what the
attacker heard most. Ends with exit code 1 where the models differ.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from benchmarks.attack_list import ATTACKS
from benchmarks.attackers import Attacker, Target
from benchmarks.suite.observed import peaks_mb

LEAST_S = 1.0  # over which is counted what others felt of an attack that is over at once
TEN = """
name: ten
partition: {kind: iid, devices: 10, examples_per_device: 60}
model: {name: mlp, hidden: [16]}
method: {name: random, clusters: 2}
clock: real
links: {device-lps: {latency: 15ms}}
training: {global_rounds: ROUNDS, lps_rounds_per_global_round: 1, local_steps: 1, batch_size: 16, evaluate_every: 9999}
"""


@dataclass
class Run:
    """A run of `fedstrata run`, and when it closed which global round."""

    folder: Path
    rounds: int
    closed: list[float] = field(default_factory=list)  # by global round, on the monotonic clock
    peak_mb: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        self.folder.mkdir()
        (self.folder / "ten.yaml").write_text(TEN.replace("ROUNDS", str(self.rounds)))
        words = ("run", str(self.folder / "ten.yaml"), "--out", str(self.folder / "run"), "--json")
        command = (sys.executable, "-m", "emulator", *words, "--device-processes", "1")
        self.program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.watcher = threading.Thread(target=self._watch)
        self.watcher.start()

    def _watch(self) -> None:
        assert self.program.stdout is not None
        for line in self.program.stdout:
            told = json.loads(line)
            if told.get("phase") == "training":
                self.closed += [time.monotonic()] * (told["global_round"] + 1 - len(self.closed))
            if len(self.closed) % 20 == 1 or told.get("phase") == "evaluation":
                now = peaks_mb(self.program.pid)
                self.peak_mb |= {tier: max(mb, self.peak_mb.get(tier, 0.0)) for tier, mb in now.items()}

    def end(self) -> dict[str, str]:
        """The models' SHA-256."""
        self.watcher.join()
        if self.program.wait():
            raise SystemExit(f"the run ended with {self.program.returncode}; its logs: {self.folder / 'run' / 'logs'}")
        models: dict[str, str] = json.loads((self.folder / "run" / "summary.json").read_text())["model_sha256"]
        return models

    def rates(self, windows: list[tuple[float, float]]) -> list[float]:
        """Rounds a second in stretches of wall time, by the GPS's own log: an attacker that is busy hears late."""
        said = [json.loads(line) for line in (self.folder / "run" / "logs" / "gps.log").read_text().splitlines()]
        closed = [datetime.fromisoformat(event["time"]) for event in said if event["event"] == "global_round_closed"]
        at = [moment.timestamp() for moment in closed]
        if windows[-1][1] > at[-1]:
            raise SystemExit("the run was over before the last attack; give it more --rounds")
        return [sum(since <= moment <= until for moment in at) / (until - since) for since, until in windows]

    @property
    def seconds(self) -> float:
        return self.closed[-1] - self.closed[0]


async def attacked(run: Run, seconds: float) -> tuple[list[Attacker], list[tuple[float, float]]]:
    """Make all attacks, one after the other; gives who made them, and when each was felt."""
    while len(run.closed) < 5:  # rounds, after which everybody is there
        await asyncio.to_thread(run.watcher.join, 0.5)
        if not run.watcher.is_alive():
            run.end()
            raise SystemExit("the run was over before the first attack; give it more --rounds")
    target, attackers, windows = Target.of(run.folder / "run"), [], []
    for who, _, attack in ATTACKS:
        attackers.append(Attacker(target, run.folder / "attacker", who))
        began = time.time()
        await attackers[-1].make(attack, seconds)
        windows.append((began, max(time.time(), began + LEAST_S)))
        await asyncio.to_thread(run.watcher.join, max(0.0, windows[-1][1] - time.time()))
    return attackers, windows


def _most(heard: Counter[str]) -> str:
    return ", ".join(f"{what} × {times}" for what, times in heard.most_common(2)) or "nothing"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        quiet, noisy = Run(Path(folder) / "quiet", options.rounds), Run(Path(folder) / "noisy", options.rounds)
        quiet.start()
        models = quiet.end()
        print(f"quiet: {quiet.seconds:.1f} s, {options.rounds / quiet.seconds:.1f} rounds/s, {quiet.peak_mb} MB")
        noisy.start()
        attackers, windows = asyncio.run(attacked(noisy, options.seconds))
        is_same = noisy.end() == models
        print("\n| | who | what is tried | what is heard | rounds a second |\n|---:|---|---|---|---:|")
        rates = noisy.rates(windows)
        for number, (attacker, (who, what, _), rate) in enumerate(zip(attackers, ATTACKS, rates, strict=True), 1):
            print(f"| {number} | {who} | {what} | {_most(attacker.heard)} | {rate:.1f} |")
        print(f"\nattacked: {noisy.seconds:.1f} s, {noisy.peak_mb} MB, load {os.getloadavg()[0]:.1f}")
        print("the models are the same" if is_same else "THE MODELS DIFFER")
    raise SystemExit(not is_same)


if __name__ == "__main__":
    main()
