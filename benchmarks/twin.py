"""Compare predictions of calibrated experiments (twins) with real runs.

    python -m benchmarks.twin DIR [--kubernetes VALUES] [--rounds 20] [--cases links]

The cases are runs with emulated links, with slow links of three devices, with slow boards, and without emulation. Each
case is run on the real clock with two LPSs and calibrated: `fedstrata calibrate` writes its twin. The twin then
predicts how long a global round takes, for the calibrated run itself and for runs on topologies that it has not seen.
These runs are done, too. A row of the table has the median of a run's global rounds, the prediction, and how far it is
off.

Runs are processes of this machine or, with `--kubernetes`, pods. `VALUES` is a file of chart values. `DIR` keeps the
records, and runs that have one are not repeated. After an interruption, remove the folder of the unfinished run.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median

from emulator.estimates.calibrate import global_rounds_s
from emulator.estimates.check import model_size, payloads_of
from emulator.estimates.check_times import expected_times
from emulator.results.read_record import load_record
from emulator.shipped.share import EXPERIMENTS
from fedstrata.datasets import dataset_info, load_dataset
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment

BASE = ("method=fedavg", "topology.lps=2", "clock=real")
LINKS = "device-lps: {up_rate: 2Mbit/s, down_rate: 4Mbit/s, latency: 20ms}, lps-gps: {up_rate: 50Mbit/s, latency: 10ms}"
CASES = {
    "links": (f"links={{{LINKS}}}",),
    "slow-edge": (f"links={{{LINKS}, overrides: [{{devices: [7-9], preset: lte-m}}]}}",),
    "boards": ("compute={per_example: 150us, devices: {pi5: [0-4], pi4: [5-9]}}",),
    "unlinked": (),
}
TOPOLOGIES = {
    "calibrated": (),
    "one LPS": ("topology.lps=1",),
    "five LPSs": ("topology.lps=5",),
    "four LPS rounds": ("training.lps_rounds_per_global_round=4",),
}


class Runs:
    """Do runs of the example `digits`, as processes or in pods."""

    def __init__(self, folder: Path, values: Path | None, rounds: int) -> None:
        self._folder, self._values = folder, values
        self._base = (*BASE, f"training.global_rounds={rounds}")

    def record(self, name: str, changes: tuple[str, ...]) -> Path:
        """Return the folder of the record of a run with these changes. The run is done unless it is there."""
        record = self._folder / name.replace(" ", "-")
        if (record / "summary.json").exists():
            return record
        sets = [word for change in (*self._base, *changes) for word in ("--set", change)]
        if self._values is None:
            _fedstrata("run", str(EXPERIMENTS / "digits.yaml"), *sets, "--quiet", "--out", str(record))
            return record
        where = ("--namespace", "twin", "--release", "twin")
        _fedstrata("up", str(EXPERIMENTS / "digits.yaml"), *sets, *where, "--values", str(self._values))
        try:
            _fedstrata("collect", *where, "--quiet", "--out", str(record))
        finally:
            _fedstrata("down", *where, "--delete-records", "--yes")
        return record


def _fedstrata(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "emulator", *words], check=True, stdout=subprocess.DEVNULL)


def predicted_s(twin: Experiment) -> float:
    """Return how long a global round takes on the virtual clock, in seconds."""
    payloads = payloads_of(twin, model_size(twin, dataset_info(twin.data)))
    times = expected_times(twin, payloads, load_dataset(twin.data, twin.seed))
    return times.global_round.ends_ns / 1e9


def main() -> None:
    """Do the runs, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kubernetes", type=Path, metavar="VALUES")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    given = parser.parse_args()
    runs = Runs(given.folder, given.kubernetes, given.rounds)
    print("| case | topology | measured, s | predicted, s | off, % |\n|---|---|---:|---:|---:|")
    for case in given.cases:
        links, twin = CASES[case], given.folder / f"{case}.yaml"
        for topology, changes in TOPOLOGIES.items():
            record = runs.record(f"{case} {topology}", (*links, *changes))
            if not twin.exists():
                _fedstrata("calibrate", str(record), "--out", str(twin))
            measured = median(global_rounds_s(load_record(record)).values())
            predicted = predicted_s(parse_experiment(twin.read_text(), overrides=changes, where=str(twin)))
            off = 100 * (predicted / measured - 1)
            print(f"| {case} | {topology} | {measured:.3f} | {predicted:.3f} | {off:+.1f} |", flush=True)


if __name__ == "__main__":
    main()
