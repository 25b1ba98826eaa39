"""What the virtual clock costs: the same run with `clock: virtual` and with `clock: none`, in turns.

    python -m benchmarks.clock_cost [EXPERIMENT] [--repeat 2]

A line a run with its wall time and the CPU time of all its processes, to which other programs on the machine add
little; then the virtual time, whether all models have equal bits, and the clock's share of the CPU time.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.clocks import have_equal_models
from emulator.results.record import load_record


def timed_run(experiment: str, clock: str, out: Path) -> tuple[float, float]:
    """Wall and CPU seconds of a run and all that it starts."""
    words = ["run", experiment, "--set", f"clock={clock}", "--out", str(out), "--quiet"]
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "emulator", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the run with clock: {clock} failed; see {out / 'logs'}")
    return time.monotonic() - began, used.ru_utime + used.ru_stime


def main() -> None:
    """Run both in turns and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="?", default=str(Path(__file__).parent / "thousand_links.yaml"))
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    cpu: dict[str, list[float]] = {"virtual": [], "none": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.repeat):
            for clock, found in cpu.items():
                wall_s, cpu_s = timed_run(options.experiment, clock, Path(folder) / f"{clock}-{number}")
                found.append(cpu_s)
                load = os.getloadavg()[0]
                print(f"clock: {clock:7} {wall_s:6.1f} s, {cpu_s:6.1f} s of CPU, load average {load:.1f}", flush=True)
        timed, plain = Path(folder) / "virtual-0", Path(folder) / "none-0"
        virtual = load_record(timed).summary.virtual
        hours = (virtual.seconds if virtual is not None else 0) / 3600
        print(f"virtual time: {hours:.2f} hours; equal bits of all models: {have_equal_models(timed, plain)}")
    share = statistics.median(cpu["virtual"]) / statistics.median(cpu["none"]) - 1
    print(f"the clock's share: {100 * share:+.1f} % of the CPU time without one")


if __name__ == "__main__":
    main()
