"""All certificates of a run of a hundred devices, and its authority, replaced while it trains; beside a quiet run.

    python -m benchmarks.renewal --rounds 200 --processes 10

Prints how long both took, what was lost, and how often anybody connected anew; ends with code 1 where a model differs
or something was lost.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STEPS: tuple[tuple[str, ...], ...] = (("--authority", "new"), (), ("--authority", "drop"))
LOST = ("lps_away", "sent_again", "call_refused", "update_late")  # events of which a rotation should cause none


def events(run: Path) -> list[dict[str, Any]]:
    """What all processes of a run have said."""
    lines = (line for log in (run / "logs").glob("*.log") for line in log.read_text().splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


def renew(run: Path, *words: str) -> None:
    """One step of a rotation, of all certificates of the run."""
    command = ("certs", "renew", *words, "--folder", str(run / "state" / "tls"))
    subprocess.run((sys.executable, "-m", "emulator", *command), check=True, stdout=subprocess.DEVNULL)


def train(run: Path, options: argparse.Namespace, steps: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """One run, with the steps of a rotation at even distances in its rounds; gives its summary."""
    due = {options.rounds * (number + 1) // (len(steps) + 2): step for number, step in enumerate(steps)}
    words = ("run", str(options.experiment), "--out", str(run), "--json")
    changes = ("--set", f"training.global_rounds={options.rounds}", "--device-processes", str(options.processes))
    command = (sys.executable, "-m", "emulator", *words, *changes)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            now = json.loads(line).get("global_round") or 0
            for at in [at for at in due if at <= now]:
                renew(run, *due.pop(at))
    if program.returncode or due:
        raise SystemExit(f"the run ended with {program.returncode}, before {len(due)} steps; its logs: {run / 'logs'}")
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def main() -> None:
    """Print a line a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", type=Path, default=HERE / "hundred.yaml")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--processes", type=int, default=10)
    options = parser.parse_args()
    shas, lost = [], 0
    for name, steps in (("quiet", ()), ("renewed", STEPS)):
        with tempfile.TemporaryDirectory() as folder:
            began, run = time.monotonic(), Path(folder) / "run"
            summary = train(run, options, steps)
            said = Counter(event["event"] for event in events(run))
            lost += sum(said[event] for event in LOST)
            shas.append(summary["model_sha256"])
            print(
                f"{name}: {time.monotonic() - began:.1f} s, certificates taken {said['certificate_taken']}, "
                f"connections opened anew {said['connection_renewed']}, lost "
                f"{ {event: said[event] for event in LOST} }, models {shas[-1]}, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    raise SystemExit(int(shas[0] != shas[1] or lost > 0))


if __name__ == "__main__":
    main()
