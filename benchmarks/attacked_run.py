"""A run of ten devices that is attacked: when it closed which round, what its servers held, and how it ended."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benchmarks.patience import Patience
from benchmarks.suite.observed import memory_mb, peaks_mb, tiers_of

SERVERS = "gps", "lps"
PROBE_S = 0.25
# Longer than processes may take to come up (three minutes), an attack, or a round of a run that is under one.
PATIENCE_S = 240.0
LAST_LINES = 3
TEN = """
name: ten
partition: {kind: iid, devices: 10, examples_per_device: 60}
model: {name: mlp, hidden: [16]}
method: {name: random, clusters: 2}
clock: real
links: {device-lps: {latency: 15ms}}
training: {global_rounds: ROUNDS, lps_rounds_per_global_round: 1, local_steps: 1, batch_size: 16, evaluate_every: 9999}
"""
Window = tuple[float, float]  # in seconds since 1970


@dataclass
class Run:
    """A run of `fedstrata run`, and when it closed which global round."""

    folder: Path
    rounds: int
    has_tls: bool = True
    seen: int = 0  # global rounds that it has said to be closed
    phase: str = "not begun"
    peak_mb: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.patience = Patience(PATIENCE_S, self._last_words)

    def start(self) -> None:
        self.folder.mkdir()
        (self.folder / "ten.yaml").write_text(TEN.replace("ROUNDS", str(self.rounds)))
        words = ["run", str(self.folder / "ten.yaml"), "--out", str(self.folder / "run"), "--json"]
        words += ["--device-processes", "1", "--tls" if self.has_tls else "--no-tls"]
        with (self.folder / "errors").open("wb") as errors:
            command = (sys.executable, "-m", "emulator", *words)
            self.program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()

    def end(self) -> None:
        """Leave none of its processes, where it has not ended by itself."""
        with suppress(ProcessLookupError):
            if self.program.poll() is None:
                family = tiers_of(self.program.pid)
                self.program.kill()
                for pid in family:  # each ends with the emulator, unless that is what it does not do
                    os.kill(pid, signal.SIGKILL)

    def _watch(self) -> None:
        assert self.program.stdout is not None
        for line in self.program.stdout:
            told = json.loads(line)
            self.phase = str(told.get("phase", self.phase))
            if self.phase == "training" and "global_round" in told:
                self.seen = told["global_round"]
            if self.seen % 20 == 1 or told.get("phase") == "evaluation":
                now = peaks_mb(self.program.pid)
                self.peak_mb |= {tier: max(mb, self.peak_mb.get(tier, 0.0)) for tier, mb in now.items()}

    async def wait_round(self, number: int) -> None:
        """Wait until so many global rounds are closed: then everybody is there."""
        self.patience.waits_for(f"{self.folder.name} has not come to its round {number}")
        while self.seen < number:
            await asyncio.to_thread(self.watcher.join, 0.2)
            if not self.watcher.is_alive():
                raise SystemExit(f"the run was over before round {number}: {self.reason()}; give it more --rounds")

    def servers(self) -> dict[str, int]:
        """The process of the GPS, and that of the first LPS."""
        pids = tiers_of(self.program.pid)
        first = {tier: sorted(pid for pid, found in pids.items() if found == tier) for tier in SERVERS}
        lps_0 = next(pid for pid in first["lps"] if "lps-0" in Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
        return {"gps": first["gps"][0], "lps": lps_0}

    def models(self) -> dict[str, str] | None:
        """Wait for the end; gives the models' SHA-256, None where the run has failed."""
        while self.watcher.is_alive():
            self.patience.waits_for(f"{self.folder.name} does not go on from round {self.seen} in phase {self.phase}")
            seen = self.seen, self.phase
            while self.watcher.is_alive() and seen == (self.seen, self.phase):
                self.watcher.join(1.0)
        self.patience.waits_for(f"{self.folder.name} has said its last word in phase {self.phase}, and does not end")
        if self.program.wait():
            return None
        models: dict[str, str] = json.loads((self.folder / "run" / "summary.json").read_text())["model_sha256"]
        return models

    def _last_words(self) -> str:
        """What each of its processes has said last; they are ended."""
        said = [f"of {self.folder.name}, in phase {self.phase} at round {self.seen}: {self.reason()}"]
        for log in sorted((self.folder / "run" / "logs").glob("*.log")):
            said += [f"{log.name}: {line}" for line in log.read_text().splitlines()[-LAST_LINES:]]
        alive = ", ".join(f"{tier} {pid}" for pid, tier in tiers_of(self.program.pid).items())
        self.end()
        return "\n".join([*said, f"alive until now: {alive or 'nobody'}"])

    def reason(self) -> str:
        """The last line on its standard error."""
        lines = (self.folder / "errors").read_text().strip().splitlines()
        return lines[-1] if lines else f"it ended with {self.program.returncode}"

    def _closed(self) -> list[float]:
        log = (self.folder / "run" / "logs" / "gps.log").read_text()
        said: list[dict[str, Any]] = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        closed = [event["time"] for event in said if event["event"] == "global_round_closed"]
        return [datetime.fromisoformat(moment).timestamp() for moment in closed]

    def rates(self, windows: Sequence[Window]) -> list[float]:
        """Rounds a second in stretches of time, by the GPS's own log: an attacker that is busy hears late."""
        at = self._closed()
        return [sum(since <= moment <= until for moment in at) / (until - since) for since, until in windows]

    def told(self) -> str:
        """How long it took from the first closed global round to the last, and what its fattest processes held."""
        at = self._closed()
        seconds, mb = at[-1] - at[0], ", ".join(f"{tier} {mb:.0f} MB" for tier, mb in sorted(self.peak_mb.items()))
        return f"{len(at)} rounds in {seconds:.1f} s, {len(at) / seconds:.1f} rounds/s; {mb}"


class Memory:
    """How much more than now a run's servers hold at their peaks from now on."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._now = {tier: memory_mb(pid) for tier, pid in pids.items()}
        for pid in pids.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is what it is now

    def growth_mb(self) -> dict[str, float]:
        return {tier: max(0.0, memory_mb(pid, "VmHWM") - self._now[tier]) for tier, pid in self._pids.items()}


class Probes:
    """Asks a process whether it is alive, as kubelet would, a few times a second."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.asked = self.answered = 0

    def _ask(self) -> None:
        self.asked += 1
        try:
            with urlopen(f"http://{self._address}/healthz", timeout=1) as reply:
                self.answered += reply.status == 200
        except OSError:
            pass

    async def go_on(self) -> None:
        """Until it is cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.to_thread(self._ask)
            await asyncio.sleep(max(0.0, PROBE_S - (time.monotonic() - began)))
