"""Time and memory of the rules by which a parent combines updates.

    python -m benchmarks.rules
    python -m benchmarks.rules --sizes 20x10 --rules median multi_krum

Each rule combines random updates in a process of its own, on one thread: 1,000 updates of 1 MB, and 20 of 10 MB. Prints
the processor seconds until all updates are taken, those of the rest of the round, and by how much the process's peak
memory exceeds its memory at the start. Fails if a time or memory is over its limit in `LIMITS`.

Before the measurement, the process writes and deletes a file of the same size. The host of a virtual machine takes back
memory that was free for some seconds. The next gigabyte of files, also in /dev/shm, then takes up to 1.6 s more system
time.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.suite.observed import resident_mb
from fedstrata.experiment_file import parse_experiment
from fedstrata.rules import of_updates
from fedstrata.rules.registry import make_rule
from fedstrata.rules.spool import Spool
from fedstrata.tensors import CHUNK_BYTES

RULES = {
    "mean": "mean",
    "clipped_mean": "clipped_mean",
    "median": "median",
    "trimmed_mean": "trimmed_mean",
    "multi_krum": "multi_krum",
    "geometric_median": "geometric_median",
    "trusted": "{name: trusted, children: [device-000]}",
}
# Limits by size, number of updates x MB: seconds to take updates, seconds of the rule, MB of memory
LIMITS = {"1000x1": (2.0, 13.0, 150.0), "20x10": (1.0, 1.0, 32.0), "4x1": (2.0, 13.0, 150.0)}  # the last to try it
TEXT = "name: rules\npartition: {kind: iid, devices: 1000, examples_per_device: 10}\nmethod: fedavg\n"


async def one(rule: str, children: int, megabytes: int) -> None:
    """Combine updates, and print seconds and memory."""
    section = f"aggregation.lps={RULES[rule]}"
    size, piece = megabytes * 250_000, CHUNK_BYTES // 4
    noise = np.random.default_rng(1).standard_normal(piece + children, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        experiment = parse_experiment(TEXT, overrides=[section])
        names, made = experiment.device_ids()[:children], make_rule(experiment, "lps")
        _use_memory_of_files(children, size, Path(folder))
        before = resident_mb(os.getpid(), "VmRSS")
        gathering = of_updates(made, size, dict.fromkeys(names, 10), Path(folder))
        began = time.process_time()
        for child, name in enumerate(names):
            for start in range(0, size, piece):
                gathering.take(name, start, noise[child : child + min(piece, size - start)], [10])
            gathering.accept(name, [10])
        taken = time.process_time()
        await gathering.settle()
        for total in gathering.totals:
            total.mean()
        done = time.process_time()
    print(taken - began, done - taken, resident_mb(os.getpid()) - before)


def _use_memory_of_files(children: int, size: int, folder: Path) -> None:
    spool, row = Spool(size, folder), np.ones(size, np.float32)
    for child in range(children):
        spool.write(str(child), 0, row)
    spool.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="+", default=[*RULES], choices=RULES)
    parser.add_argument("--sizes", nargs="+", default=[*LIMITS][:2], choices=LIMITS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        asyncio.run(one(given.one[0], int(given.one[1]), int(given.one[2])))
        return 0
    over = 0
    print("| updates x MB | rule | taking, s | rule, s | memory, MB |\n|---|---|---:|---:|---:|")
    for sizes in given.sizes:
        for rule in given.rules:
            command = [sys.executable, "-m", "benchmarks.rules", "--one", rule, *sizes.split("x")]
            done = subprocess.run(
                command, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
            )
            found = [float(number) for number in done.stdout.split()]
            over += any(number > limit for number, limit in zip(found, LIMITS[sizes], strict=True))
            print(f"| {sizes} | {rule} | " + " | ".join(f"{number:.2f}" for number in found) + " |", flush=True)
    return over


if __name__ == "__main__":
    sys.exit(main())
