"""Two long runs of one experiment, one left alone, one whose processes are killed again and again: what grows?

    python -m benchmarks.soak --rounds 200 --every 10 --seed 0 --out /tmp/soak

Each run is a `fedstrata run` of experiments/digits.yaml with that many global rounds on real processes. At every
global round it notes resident memory, open files and threads of the emulator, the GPS, each LPS and each device
process, and the bytes in the run's state folder. In the second run, at every `--every`-th global round, a GPS, LPS or
device process drawn by the seed gets a SIGKILL, and the emulator starts it again.

Processes that are started again begin small, so memory is compared at the same age (global rounds since the start of
the process): the median over processes of one kind in the last quarter of the run against that in the first. The
slope is that of one life from its `WARM`-th round on, pooled over lives.

After `--seconds` it interrupts the run and ends with exit code 75; the same command goes on where it stood. Ends with
exit code 1 if something grew beyond its bound, or a model is not the same, bit for bit, in both runs.
"""

import argparse
import csv
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fedstrata.errors import EXIT_INTERRUPTED

REPOSITORY = Path(__file__).parents[1]
EXPERIMENT = REPOSITORY / "experiments" / "digits.yaml"
RUNS = ("undisturbed", "killed")
EXIT_UNFINISHED = 75
WARM = 20  # rounds of a life in which caches and thread pools still fill
LONG_ENOUGH = 10  # samples of a life after that, for a slope
# What may come on top over the whole run, by quantity: absolute, and for slopes a round.
GROWTH_MAX: Mapping[str, float] = {"rss_kb": 6 * 1024, "open_files": 2, "threads": 2}
SLOPE_MAX: Mapping[str, float] = {"rss_kb": 24, "open_files": 0.02, "threads": 0.02, "state_bytes": 4 * 1024}
LOG_BYTES_MAX = 5e6  # of the write-ahead log: SQLite's 1,000 pages of 4 KiB, and its index


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One process at one global round."""

    run: str
    round: int
    kind: str  # gps, lps, device or emulator
    process: str
    pid: int
    age: int  # global rounds since this life was first seen
    rss_kb: int
    open_files: int
    threads: int
    state_bytes: int  # of the whole run, without the next
    log_bytes: int  # of the journal's write-ahead log, which SQLite fills up to its limit and then writes over


# --- what /proc says --------------------------------------------------------------------------


def children_of(pid: int) -> Iterator[tuple[str, str, int]]:
    """Kind, name and pid of the emulator's processes that are there, itself included."""
    yield "emulator", "emulator", pid
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    for child in map(int, listed.read_text().split()):
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "-m" in words and (kind := words[words.index("-m") + 1]) in {"gps", "lps", "device"}:
            name = {"gps": "gps", "lps": after(words, "--lps-id"), "device": "devices-" + after(words, "--devices")}
            yield kind, name[kind], child


def after(words: Sequence[str], option: str) -> str:
    """The value of an option."""
    return words[words.index(option) + 1] if option in words else ""


def measured(pid: int) -> tuple[int, int, int] | None:
    """Resident kB, open files and threads of a process; None if it has just gone or not yet begun to work."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        return int(status["VmRSS"].split()[0]), len(list(Path(f"/proc/{pid}/fd").iterdir())), int(status["Threads"])
    except (OSError, KeyError):
        return None


def sizes_of(folder: Path) -> tuple[int, int]:
    """Bytes of the files in a folder that others write to, and of SQLite's write-ahead logs among them."""
    rest, logs = 0, 0
    for path in folder.rglob("*"):
        try:
            size = path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
        if path.name.endswith(("-wal", "-shm")):
            logs += size
        else:
            rest += size
    return rest, logs


# --- the runs ---------------------------------------------------------------------------------


class Soak:
    """One run of the two, in one piece or several."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self._name = name
        self._options = options
        self.folder: Path = options.out / name
        self._born: dict[int, int] = {}
        self._killed_at = 0

    @property
    def is_finished(self) -> bool:
        return (self.folder / "summary.json").exists()

    def go_on(self, until: float) -> None:
        """Run until it has finished or the time is up."""
        words = ["run", "--resume", str(self.folder)] if self.folder.exists() else self._first()
        command = [sys.executable, "-m", "emulator", *words, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, start_new_session=True) as emulator:
            is_at_its_end = False
            try:
                is_at_its_end = self._follow(emulator, until)
            finally:
                if not is_at_its_end:
                    emulator.send_signal(signal.SIGINT)
        if emulator.returncode not in {0, EXIT_INTERRUPTED}:
            raise SystemExit(f"the run {self.folder} failed with exit code {emulator.returncode}; see its logs")

    def _first(self) -> list[str]:
        rounds = f"training.global_rounds={self._options.rounds}"
        return ["run", str(EXPERIMENT), "--out", str(self.folder), "--set", rounds]

    def _follow(self, emulator: "subprocess.Popen[bytes]", until: float) -> bool:
        """Note and kill as the rounds go by; whether the run has come to its end before the time is up."""
        last = -1
        for line in emulator.stdout or ():
            if time.monotonic() > until:
                return False
            said = json.loads(line)
            if said["event"] != "status" or said["phase"] != "training" or said["global_round"] == last:
                continue
            first, last = last < 0, said["global_round"]
            self._note(emulator.pid, last)
            turn = last // self._options.every
            if first:
                self._killed_at = turn  # of a piece before this one
            elif self._name == "killed" and turn > self._killed_at:
                self._killed_at = turn
                self._kill(emulator.pid, turn)
        return True

    def _note(self, emulator: int, number: int) -> None:
        state_bytes, log_bytes = sizes_of(self.folder / "state")
        for kind, name, pid in children_of(emulator):
            found = measured(pid)
            if found is not None:
                rss_kb, open_files, threads = found
                sample = Sample(
                    run=self._name,
                    round=number,
                    kind=kind,
                    process=name,
                    pid=pid,
                    age=number - self._born.setdefault(pid, number),
                    rss_kb=rss_kb,
                    open_files=open_files,
                    threads=threads,
                    state_bytes=state_bytes,
                    log_bytes=log_bytes,
                )
                append(self._options.out / "samples.csv", asdict(sample))

    def _kill(self, emulator: int, turn: int) -> None:
        """SIGKILL to one process; which one is a function of the seed and the turn."""
        rng = random.Random(f"{self._options.seed}-{turn}")
        there = sorted((kind, name, pid) for kind, name, pid in children_of(emulator) if kind != "emulator")
        kind = rng.choice(["gps", "lps", "device"])
        _, name, pid = rng.choice([found for found in there if found[0] == kind])
        os.kill(pid, signal.SIGKILL)
        append(self._options.out / "kills.csv", {"turn": turn, "round": turn * self._options.every, "process": name})


def append(path: Path, row: Mapping[str, object]) -> None:
    """One row more of a CSV file, its header before the first."""
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)


# --- what it comes to -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Finding:
    """How one quantity of one kind of process went over one run."""

    run: str
    kind: str
    quantity: str
    first: float  # median at the same ages, first quarter
    last: float  # and last quarter
    slope: float | None  # a global round of a life; None where no life was long enough
    lives: int

    @property
    def is_bounded(self) -> bool:
        if self.quantity == "log_bytes":
            return self.last <= LOG_BYTES_MAX
        growth_max = GROWTH_MAX.get(self.quantity, float("inf"))
        is_steep = self.slope is not None and self.slope > SLOPE_MAX[self.quantity]
        return self.last - self.first <= growth_max and not is_steep


def load_samples(path: Path) -> list[Sample]:
    """The notes of all pieces."""
    kinds = {field.name: field.type for field in fields(Sample)}
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Sample(**{key: int(value) if kinds[key] is int else value for key, value in row.items()})  # type: ignore[arg-type]
            for row in csv.DictReader(file)
        ]


def findings(samples: Sequence[Sample], rounds: int) -> Iterator[Finding]:
    """Every quantity of every kind of process of every run."""
    groups: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.run, sample.kind].append(sample)
    for (run, kind), group in groups.items():
        for quantity in GROWTH_MAX:
            yield finding(run, kind, quantity, group, rounds)
    for run in dict.fromkeys(sample.run for sample in samples):
        of_run = {sample.round: sample for sample in samples if sample.run == run}.values()
        for quantity in ("state_bytes", "log_bytes"):
            yield of_the_state(run, quantity, [(sample.round, getattr(sample, quantity)) for sample in of_run], rounds)


def of_the_state(run: str, quantity: str, points: Sequence[tuple[int, float]], rounds: int) -> Finding:
    """Bytes of the whole run, by round."""
    warm, quarter = [point for point in points if point[0] >= WARM], rounds / 4
    return Finding(
        run=run,
        kind="state folder",
        quantity=quantity,
        first=statistics.median(size for number, size in warm if number < WARM + quarter),
        last=statistics.median(size for number, size in warm if number >= rounds - quarter),
        slope=slope([warm]) if quantity == "state_bytes" else None,
        lives=1,
    )


def finding(run: str, kind: str, quantity: str, group: Sequence[Sample], rounds: int) -> Finding:
    """One quantity, its quarters compared at ages that both have."""
    early, late = (
        by_age(group, quantity, range(start, stop))
        for start, stop in ((0, rounds // 4), (rounds - rounds // 4, rounds + 1))
    )
    ages = [age for age in early if age in late] or [max(early), max(late)]
    lives: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for sample in group:
        if sample.age >= WARM:
            lives[sample.pid].append((sample.age, getattr(sample, quantity)))
    return Finding(
        run=run,
        kind=kind,
        quantity=quantity,
        first=statistics.median(early[age] for age in ages if age in early),
        last=statistics.median(late[age] for age in ages if age in late),
        slope=slope(lives.values()),
        lives=len({sample.pid for sample in group}),
    )


def by_age(group: Iterable[Sample], quantity: str, rounds: range) -> dict[int, float]:
    """The median of a quantity over processes of the same age, in some rounds of the run."""
    values: dict[int, list[float]] = defaultdict(list)
    for sample in group:
        if sample.round in rounds:
            values[sample.age].append(getattr(sample, quantity))
    return {age: statistics.median(found) for age, found in values.items()}


def slope(lives: Iterable[Sequence[tuple[int, float]]]) -> float | None:
    """Least squares over all lives, each with a level of its own."""
    over, under = 0.0, 0.0
    for life in lives:
        if len(life) < LONG_ENOUGH:
            continue
        mean_x, mean_y = (statistics.fmean(point[axis] for point in life) for axis in (0, 1))
        over += sum((x - mean_x) * (y - mean_y) for x, y in life)
        under += sum((x - mean_x) ** 2 for x, _ in life)
    return over / under if under else None


def report(options: argparse.Namespace) -> int:
    """Print the table and the comparison of models; the exit code."""
    found = list(findings(load_samples(options.out / "samples.csv"), options.rounds))
    print(f"{'run':<12}{'kind':<14}{'quantity':<13}{'first':>10}{'last':>10}{'slope':>9}{'lives':>7}")
    for row in found:
        per_round = "" if row.slope is None else f"{row.slope:.3f}"
        mark = "" if row.is_bounded else "  grew beyond its bound"
        print(f"{row.run:<12}{row.kind:<14}{row.quantity:<13}{row.first:>10.0f}{row.last:>10.0f}{per_round:>9}"
              f"{row.lives:>7}{mark}")  # fmt: skip
    models = [json.loads((options.out / run / "summary.json").read_text())["model_sha256"] for run in RUNS]
    kills = options.out / "kills.csv"
    count = len(kills.read_text().splitlines()) - 1 if kills.exists() else 0
    is_same = models[0] == models[1]
    print(f"{count} kills; the {len(models[0])} models are {'the same' if is_same else 'NOT the same'} in both runs")
    return 0 if is_same and count and all(row.is_bounded for row in found) else 1


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=200, help="global rounds of each run")
    arguments.add_argument("--every", type=int, default=10, help="global rounds between two kills")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--seconds", type=float, default=3600.0, help="how long this piece may take")
    arguments.add_argument("--out", type=Path, required=True)
    options = arguments.parse_args()
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + options.seconds
    for name in RUNS:
        soak = Soak(name, options)
        if not soak.is_finished:
            soak.go_on(until)
        if not soak.is_finished:
            print(f"{name}: not finished yet; the same command goes on")
            return EXIT_UNFINISHED
    return report(options)


if __name__ == "__main__":
    sys.exit(main())
