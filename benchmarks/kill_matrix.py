"""Kills processes of real runs at seeded draws of tier and moment, and compares every model with the undisturbed one.

    python benchmarks/kill_matrix.py --draws 50 --seed 0 --out /tmp/kill-matrix

One row a draw: what was killed where, whether it came about, whether the run completed, whether every
`model_sha256` and `personal_sha256` is that of the undisturbed run. Ends with exit code 1 if any draw differs. With
`--hidden 16` the model is small: its rounds are open before they are on disk. `--set` changes the experiment as
`fedstrata run --set` does, for instance to another method or a topology. On the virtual clock the timeline is compared,
too:

    python benchmarks/kill_matrix.py --set 'method={name: ifca, clusters: 2}' --set topology.lps=2 --draws 20 ...
    python benchmarks/kill_matrix.py --set 'method={name: ditto}' --set topology.lps=2 --draws 20 ...
    python benchmarks/kill_matrix.py --set 'secure_aggregation={min_devices: 3}' --draws 20 ...
    python benchmarks/kill_matrix.py --set clock=virtual --set links.device-lps.preset=lte --draws 10 ...
"""

import argparse
import csv
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator.cli import EXIT_INTERRUPTED, execute

# two chunks of model and update on the wire, so that there is a middle to be killed in
EXPERIMENT = """
name: kill-matrix
partition:
  kind: tasks
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 3, examples_per_device: 60}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 3, examples_per_device: 60}
model: {name: mlp, hidden: [4200]}
method: {name: one_shot, clusters: 2}
training: {global_rounds: 3, lps_rounds_per_global_round: 2, local_steps: 2, batch_size: 16}
"""
LAST_LPS_ROUND, LAST_GLOBAL_ROUND = 5, 2
DEVICES = tuple(f"device-{index:03d}" for index in range(6))
Fault = dict[str, object]


def kill(process: str, point: str, count: int = 1, round_number: int | None = None) -> Fault:
    """A `faults:` entry."""
    moment: dict[str, object] = {"point": point, "count": count}
    return {"do": "kill", "process": process, "at": moment | ({} if round_number is None else {"round": round_number})}


def draw(rng: random.Random) -> Fault:
    """One kill: any tier at any of its moments, the last round as often as all others."""
    lps_round = rng.choice([*range(LAST_LPS_ROUND), LAST_LPS_ROUND, LAST_LPS_ROUND])
    global_round = rng.choice([*range(LAST_GLOBAL_ROUND), LAST_GLOBAL_ROUND])
    lps, device = rng.choice(["lps-0", "lps-1"]), rng.choice(DEVICES)
    return rng.choice([
        kill("gps", "enrolment", rng.randint(1, 6)),
        kill("gps", "profile_relay", rng.randint(1, 40)),
        kill("gps", "relevance", rng.randint(1, 6)),
        kill("gps", "grouping"),
        kill("gps", "upload", rng.randint(1, 4), global_round),
        kill("gps", "download", rng.randint(1, 4), global_round),
        kill("gps", "aggregation", 1, global_round),
        kill("gps", "state_write", rng.randint(1, 9)),
        kill(lps, "upload", rng.randint(1, 6), lps_round),
        kill(lps, "download", rng.randint(1, 6), lps_round),
        kill(lps, "aggregation", 1, rng.choice([lps_round, LAST_LPS_ROUND + 1])),
        kill(lps, "state_write", rng.randint(1, 30)),
        kill(device, "profile_relay", rng.randint(1, 5)),
        kill(device, "relevance"),
        kill(device, "upload", rng.randint(1, 2), lps_round),
        kill(device, "download", rng.randint(1, 2), lps_round),
        {"do": "kill", "process": rng.choice(["gps", device]), "at": {"phase": "enrolment"}},
        {"do": "kill", "process": rng.choice(["gps", lps, device]), "at": {"phase": "evaluation"}},
    ])  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one draw ended."""

    number: int
    faults: str
    killed: int  # of the kills drawn, how many came about
    exit_code: int
    is_same: bool
    seconds: float


def run(folder: Path, faults: list[Fault], changes: Sequence[str]) -> tuple[int, Mapping[str, str]]:
    """Exit code and hashes of a run: of models by cluster, by device of what it keeps, and of the virtual timeline."""
    file = folder.with_suffix(".yaml")
    file.write_text(EXPERIMENT, encoding="utf-8")
    settings = [word for change in (f"faults={json.dumps(faults)}", *changes) for word in ("--set", change)]
    code = execute(["run", str(file), "--out", str(folder), "--quiet", *settings])
    path = folder / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else {}
    timeline = {"timeline": (summary.get("virtual") or {}).get("timeline_sha256", "")}
    return code, {**summary.get("model_sha256", {}), **summary.get("personal_sha256", {}), **timeline}


def outcomes(out: Path, draws: int, seed: int, changes: Sequence[str]) -> Iterator[Outcome]:
    """The draws, one after another; every third is a pair."""
    _, undisturbed = run(out / "undisturbed", [], changes)
    rng = random.Random(seed)
    for number in range(draws):
        faults = [draw(rng) for _ in range(2 if number % 3 == 2 else 1)]
        began = time.monotonic()
        folder = out / f"draw-{number:03d}"
        code, models = run(folder, faults, changes)
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        yield Outcome(
            number=number,
            faults=json.dumps(faults),
            killed=restarts(folder),
            exit_code=code,
            is_same=code == 0 and models == undisturbed,
            seconds=time.monotonic() - began,
        )


def restarts(folder: Path) -> int:
    """How many kills came about: notes that processes left, and those of the driver."""
    markers = folder / "state" / "faults"
    by_themselves = len(list(markers.iterdir())) if markers.exists() else 0
    log = folder / "logs" / "faults.log"
    told = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return by_themselves + sum("never came about" not in line for line in told)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--draws", type=int, default=50)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--hidden", type=int, default=4200, help="units of the hidden layer")
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the experiment")
    options = arguments.parse_args()
    changes = [f"model.hidden=[{options.hidden}]", *options.set]
    options.out.mkdir(parents=True)
    failed = 0
    with (options.out / "draws.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["draw", "killed", "exit_code", "same_models", "seconds", "faults"])
        for outcome in outcomes(options.out, options.draws, options.seed, changes):
            row = [outcome.number, outcome.killed, outcome.exit_code, outcome.is_same, round(outcome.seconds, 1)]
            writer.writerow([*row, outcome.faults])
            file.flush()
            print(*row, outcome.faults, flush=True)
            failed += not outcome.is_same
    print(f"{options.draws - failed} of {options.draws} draws gave the models of the undisturbed run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
