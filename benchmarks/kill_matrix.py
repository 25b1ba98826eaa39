"""Kill processes of runs at random tiers and moments, and compare every model with an undisturbed run.

    python -m benchmarks.kill_matrix --draws 50 --seed 0 --out /tmp/kill-matrix

Prints one row per draw: how many kills happened, the exit code of the run, whether the result is the same as in the
undisturbed run, and the drawn kills. The result is the same if the run completed, and every `model_sha256` and
`personal_sha256` is equal. On the virtual clock, timeline.csv and the list `excluded` of summary.json must be equal,
too. Ends with exit code 1 if any draw differs.

With `--hidden 16` the model is small: its rounds are open before they are on disk. `--set` changes the experiment as in
`fedstrata run`, for instance to another method or a topology:

    python -m benchmarks.kill_matrix --set 'method={name: ifca, clusters: 2}' --set topology.lps=2 --draws 20 --out DIR
    python -m benchmarks.kill_matrix --set 'method={name: ditto}' --set topology.lps=2 --draws 20 --out DIR
    python -m benchmarks.kill_matrix --set 'secure_aggregation={min_devices: 3}' --draws 20 --out DIR
    python -m benchmarks.kill_matrix --experiment benchmarks/kill_matrix_clock.yaml \\
        --device-processes 1 2 5 --draws 10 --out DIR
    python -m benchmarks.kill_matrix --experiment benchmarks/kill_matrix_moves.yaml \\
        --device-processes 1 2 5 --draws 10 --out DIR

An experiment file of your own (`--experiment`) must have six devices on two LPSs, and three global rounds of two LPS
rounds. With several numbers of `--device-processes`, there is an undisturbed run for each number, and the draws use the
numbers in turn. All runs are compared with the first undisturbed run.
"""

import argparse
import csv
import hashlib
import io
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from emulator.commands.main import execute
from fedstrata.errors import EXIT_INTERRUPTED

LAST_LPS_ROUND, LAST_GLOBAL_ROUND = 5, 2
DEVICES = tuple(f"device-{index:03d}" for index in range(6))
Fault = dict[str, object]


def kill(process: str, point: str, count: int = 1, round_number: int | None = None) -> Fault:
    """Return an entry of the section `faults` that kills a process at a point of its code."""
    moment: dict[str, object] = {"point": point, "count": count}
    return {"do": "kill", "process": process, "at": moment | ({} if round_number is None else {"round": round_number})}


def draw(rng: random.Random) -> Fault:
    """Return a random kill: any tier at any of its points. The last round is as likely as all others together."""
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
class Came:
    """Hold the hashes of a run: of its models and kept states, of timeline.csv, and of the excluded devices."""

    exit_code: int
    models: str = ""
    timeline: str = ""
    excluded: str = ""

    def agrees(self, expected: "Came") -> bool:
        """Return whether the run completed with the same hashes as the undisturbed run."""
        return self.exit_code == 0 and self == expected

    def __str__(self) -> str:
        timeline = f" timeline {self.timeline} excluded {self.excluded}" if self.timeline else ""
        return f"models {self.models}{timeline}"


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Hold the experiment that is run again and again, and its folders."""

    experiment: str
    changes: Sequence[str]
    device_processes: Sequence[int | None]  # None: one per core
    out: Path

    def run(self, name: str, faults: list[Fault], processes: int | None) -> Came:
        """Run the experiment with these faults, and return its hashes."""
        folder = self.out / name
        file = folder.with_suffix(".yaml")
        file.write_text(self.experiment, encoding="utf-8")
        settings = [word for change in (f"faults={json.dumps(faults)}", *self.changes) for word in ("--set", change)]
        hosts = ["--device-processes", str(processes)] if processes is not None else []
        with redirect_stdout(io.StringIO()):  # hide the result's tables, but not errors
            code = execute(["run", str(file), "--out", str(folder), "--quiet", *hosts, *settings])
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        return came_of(folder, code)

    def undisturbed(self) -> Iterator[tuple[str, Came]]:
        """Yield the hashes of the run without faults, for each number of device processes."""
        for processes in self.device_processes:
            name = "undisturbed" if processes is None else f"undisturbed-{processes}"
            yield name, self.run(name, [], processes)

    def draws(self, expected: Came, count: int, seed: int) -> Iterator[tuple[Came, list[object]]]:
        """Yield the hashes of each draw, and its row in draws.csv. Every third draw has two kills."""
        rng = random.Random(seed)
        for number in range(count):
            faults = [draw(rng) for _ in range(2 if number % 3 == 2 else 1)]
            began, name = time.monotonic(), f"draw-{number:03d}"
            came = self.run(name, faults, self.device_processes[number % len(self.device_processes)])
            seconds, killed = round(time.monotonic() - began, 1), restarts(self.out / name)
            yield came, [number, killed, came.exit_code, came.agrees(expected), seconds, json.dumps(faults), came]


def came_of(folder: Path, exit_code: int) -> Came:
    """Return the hashes of a record."""
    path = folder / "summary.json"
    if not path.exists():
        return Came(exit_code=exit_code)
    summary = json.loads(path.read_text(encoding="utf-8"))
    models = {**summary.get("model_sha256", {}), **summary.get("personal_sha256", {})}
    timeline = folder / "timeline.csv"
    if not timeline.exists():
        return Came(exit_code=exit_code, models=sha256_of(models))
    file = hashlib.sha256(timeline.read_bytes()).hexdigest()
    excluded = sorted(json.dumps(each, sort_keys=True) for each in summary["excluded"])
    return Came(exit_code=exit_code, models=sha256_of(models), timeline=file, excluded=sha256_of(excluded))


def sha256_of(value: Mapping[str, str] | Sequence[str]) -> str:
    """Return the SHA-256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def restarts(folder: Path) -> int:
    """Return how many of the drawn kills happened."""
    log = folder / "logs" / "faults.log"
    told = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return sum("did not happen" not in line for line in told)


def parsed() -> argparse.Namespace:
    """Return the command's arguments."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--draws", type=int, default=50)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--hidden", type=int, default=4200, help="units of the hidden layer")
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--experiment", type=Path, default=Path(__file__).with_suffix(".yaml"), help="another file")
    arguments.add_argument("--device-processes", type=int, nargs="+", default=[None], metavar="N")
    arguments.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change one key of the experiment; repeatable"
    )
    return arguments.parse_args()


def main() -> int:
    options = parsed()
    options.out.mkdir(parents=True)
    matrix = Matrix(
        experiment=options.experiment.read_text(encoding="utf-8"),
        changes=[f"model.hidden=[{options.hidden}]", *options.set],
        device_processes=options.device_processes,
        out=options.out,
    )
    came = []
    for name, each in matrix.undisturbed():
        print(name, each, flush=True)
        came.append(each)
    alike = sum(each.agrees(came[0]) for each in came)
    print(f"{alike} of {len(came)} undisturbed runs agree", flush=True)
    with (options.out / "draws.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["draw", "killed", "exit_code", "same", "seconds", "faults", "result"])
        same = 0
        for each, row in matrix.draws(came[0], options.draws, options.seed):
            writer.writerow(row)
            file.flush()
            print(*row, flush=True)
            same += each.agrees(came[0])
    what = "models and timeline" if came[0].timeline else "models"
    print(f"{same} of {options.draws} draws gave the {what} of the undisturbed run")
    return 1 if alike < len(came) or same < options.draws else 0


if __name__ == "__main__":
    sys.exit(main())
