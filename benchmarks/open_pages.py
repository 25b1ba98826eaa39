"""What open pages cost a run: the seconds of a global round without and with pages, in interleaved pairs.

A page here is a connection to `/page/events` that takes all it is sent, as fast as it comes, in one process beside the
run; `--stalled` of them take nothing at all. What a browser needs to draw is the browser's and is not measured.

    python -m benchmarks.open_pages --pages 50 --pairs 6
    python -m benchmarks.open_pages --pages 0 --pairs 6     # how far two runs lie apart that differ in nothing
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

REQUEST = b"GET /page/events HTTP/1.1\r\nHost: gps\r\n\r\n"
EXPERIMENT = """
name: open-pages
partition: {{kind: iid, devices: {devices}, examples_per_device: {examples}}}
model: {{name: mlp, hidden: [64]}}
method: {{name: random, clusters: 4}}
training: {{global_rounds: {rounds}, lps_rounds_per_global_round: 2, batch_size: 8}}
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run: seconds a global round, and what its readers were sent."""

    round_s: float
    read_bytes: int
    gps_cpu_s: float  # of the GPS's process as a whole
    gps_peak_kb: int

    def __str__(self) -> str:
        memory, sent = f"{self.gps_peak_kb / 1000:.1f} MB", f"{self.read_bytes / 1e6:.1f} MB sent"
        return f"{1000 * self.round_s:.1f} ms a global round, GPS {self.gps_cpu_s:.2f} s of CPU, {memory}, {sent}"


async def read_all(host: str, port: int, pages: int, stalled: int) -> int:
    """Open so many pages and read them to their end; gives the bytes that came."""
    waiting = [await _open(host, port) for _ in range(stalled)]

    async def read() -> int:
        source, _ = await _open(host, port)
        taken = 0
        while data := await source.read(1 << 16):
            taken += len(data)
        return taken

    taken = sum(await asyncio.gather(*(read() for _ in range(pages))))
    for _, sink in waiting:
        sink.close()
    return taken


async def _open(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    source, sink = await asyncio.open_connection(host, port, limit=1 << 12)  # asyncio reads ahead so much and no more
    sink.write(REQUEST)
    await sink.drain()
    return source, sink


def _readers(host: str, port: int, pages: int, stalled: int, result: "Queue[int]") -> None:
    result.put(asyncio.run(read_all(host, port, pages, stalled)))


def measure(experiment: Path, pages: int, stalled: int) -> Measured:
    """Run the experiment with so many pages open."""
    processes = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        words = ("-m", "emulator", "run", str(experiment), "--out", f"{folder}/run", "--page", "--json")
        taken = 0
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            told = map(json.loads, run.stdout)
            place = urlsplit(next(event["url"] for event in told if event["event"] == "page"))
            result = processes.Queue()
            arguments = (place.hostname, place.port, pages, stalled, result)
            readers = processes.Process(target=_readers, args=arguments)
            if pages or stalled:
                readers.start()
            cpu_s, peak_kb = 0.0, 0
            for event in told:
                cpu_s, peak_kb = _used_by_gps(Path(folder)) or (cpu_s, peak_kb)
                if event["event"] == "summary":
                    summary = event["summary"]
            if pages or stalled:
                taken = result.get()
                readers.join()
    round_s = summary["wall_seconds"]["train"] / summary["rounds"]
    return Measured(round_s=round_s, read_bytes=taken, gps_cpu_s=cpu_s, gps_peak_kb=peak_kb)


def _used_by_gps(folder: Path) -> tuple[float, int] | None:
    """CPU seconds and the most memory in kB that the GPS of the run in a folder has used so far."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            command = status.with_name("cmdline").read_bytes().split(b"\0")
            if b"gps" in command and any(word.startswith(bytes(folder)) for word in command):
                times = status.with_name("stat").read_text().rpartition(")")[2].split()
                cpu_s = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
                return cpu_s, int(status.read_text().split("VmHWM:")[1].split()[0])
        except (OSError, IndexError):
            continue
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Print each pair, and the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("pages", 50), ("stalled", 0), ("pairs", 6), ("devices", 40), ("examples", 30), ("rounds", 60)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args(arguments)
    pairs: list[tuple[Measured, Measured]] = []
    with tempfile.TemporaryDirectory() as folder:
        experiment = Path(folder, "open-pages.yaml")
        experiment.write_text(EXPERIMENT.format(**vars(given)))
        for number in range(given.pairs):
            both = [(0, 0), (given.pages, given.stalled)]
            found = [measure(experiment, *counts) for counts in (both if number % 2 == 0 else both[::-1])]
            pairs.append((found[0], found[1]) if number % 2 == 0 else (found[1], found[0]))
            print(f"without: {pairs[-1][0]}; with {given.pages}: {pairs[-1][1]}", flush=True)
    for what in ("round_s", "gps_cpu_s"):
        ratios = [getattr(beside, what) / getattr(without, what) for without, beside in pairs]
        print(f"{what}: median ratio {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
