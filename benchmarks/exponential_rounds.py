"""The mean round of a run with devices that compute T_min + Exp(μ), and T_min + H_m / μ, the slowest of m.

    python -m benchmarks.exponential_rounds --devices 20 --rounds 200

Ends with exit code 1 if the two differ by more than `--most-apart` percent.
"""

import argparse
import math
import statistics
import sys
import tempfile

import fedstrata
from emulator.results.record import load_record

MINIMUM_S, MEAN_S = 1.0, 1.0  # T_min and 1/μ


def round_seconds(devices: int, rounds: int, seed: int) -> list[float]:
    """Return the virtual time of each LPS round of a run with exponential computing times."""
    experiment = {
        "name": "exponential",
        "seed": seed,
        "partition": {"kind": "iid", "devices": devices, "examples_per_device": 16},
        "method": "fedavg",
        "topology": {"lps": 1},
        "training": {"global_rounds": rounds, "lps_rounds_per_global_round": 1, "local_steps": 1},
        "clock": "virtual",
        "compute": {"minimum": f"{MINIMUM_S:g}s", "exponential": f"{MEAN_S:g}s"},
    }
    with tempfile.TemporaryDirectory() as folder:
        record = load_record(fedstrata.run(experiment, out=f"{folder}/run", quiet=True).folder)
        return [row.ends_s - row.begins_s for row in record.timeline if row.tier == "lps"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--most-apart", type=float, default=3.0, help="percent")
    options = parser.parse_args()
    harmonic = math.fsum(1 / number for number in range(1, options.devices + 1))
    expected_s = MINIMUM_S + harmonic * MEAN_S
    print(f"T_min + H_m / mu = {expected_s:.4f} s with m = {options.devices}")
    worst = 0.0
    for seed in options.seed:
        seconds = round_seconds(options.devices, options.rounds, seed)
        apart = statistics.fmean(seconds) / expected_s - 1
        print(f"seed {seed}: {len(seconds)} rounds, mean {statistics.fmean(seconds):.4f} s, {100 * apart:+.2f} %")
        worst = max(worst, abs(apart))
    return 1 if 100 * worst > options.most_apart else 0


if __name__ == "__main__":
    sys.exit(main())
