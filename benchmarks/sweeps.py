"""What a sweep costs beside the CPU time of its runs, and whether one that was killed ends with the same table.

    python -m benchmarks.sweeps --out runs/sixty

Does the sweep twice. The second time `kill -9` ends it once half of the runs are done, and the same command goes on.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TABLES = ("table.csv", "table.md")


def lines_of(sweep: Path, out: Path, kill_after: int | None = None) -> list[dict[str, Any]]:
    """What the sweep says, line by line; killed once so many runs are done."""
    command = [sys.executable, "-m", "emulator", "sweep", str(sweep), "--out", str(out), "--json"]
    told: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told.append(json.loads(line))
            if kill_after is not None and told[-1].get("done", 0) >= kill_after:
                process.kill()
                break
    return told


def cost_line(said: Sequence[dict[str, Any]]) -> str:
    """Wall time, CPU time and their ratio, of a sweep's last line."""
    last = said[-1]
    ratio = last["seconds"] * last["cores"] / last["cpu_seconds"]
    return (
        f"{last['done_now']} runs, {last['completed']} of {last['runs']} complete: {last['seconds']:.0f} s, "
        f"CPU {last['cpu_seconds']:.0f} s on {last['cores']} cores, ratio {ratio:.2f}"
    )


def main() -> None:
    """Print both, and whether the tables are the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", nargs="?", type=Path, default=HERE / "sixty.yaml")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    print(f"load average {', '.join(f'{each:.1f}' for each in os.getloadavg())}")
    whole, halves = options.out / "whole", options.out / "halves"
    runs = (said := lines_of(options.sweep, whole))[-1]["runs"]
    print(f"in one go: {cost_line(said)}", flush=True)
    print(f"killed after {len(lines_of(options.sweep, halves, kill_after=runs // 2))} lines")
    print(f"gone on:   {cost_line(lines_of(options.sweep, halves))}")
    same = all((whole / name).read_bytes() == (halves / name).read_bytes() for name in TABLES)
    print(f"the tables are {'the same' if same else 'NOT the same'}")
    print(f"load average {', '.join(f'{each:.1f}' for each in os.getloadavg())}")


if __name__ == "__main__":
    main()
