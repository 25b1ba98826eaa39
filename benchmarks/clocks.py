"""The same run on the virtual and on the real clock: how far apart their rounds are, and how much faster one is.

    python -m benchmarks.clocks [EXPERIMENT] [--set KEY=VALUE ...]

Says by how much the rounds missed each other, and whether all models have equal bits.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import fedstrata
from emulator.results.record import RunRecord, load_record


def ratios(virtual: RunRecord, real: RunRecord) -> list[float]:
    """How long each LPS round took on the real clock, in those of the virtual one."""
    expected = {(row.lps_id, row.lps_round): row.ends_s - row.begins_s for row in virtual.timeline if row.tier == "lps"}
    return [row.seconds / expected[row.lps_id, row.lps_round] for row in real.rounds]


def have_equal_models(one: Path, other: Path) -> bool:
    """Whether all tensors of two records are the same, to the bit."""
    names = sorted(path.name for path in (one / "models").iterdir())
    pairs = [(load_file(one / "models" / name), load_file(other / "models" / name)) for name in names]
    return bool(names) and all(np.array_equal(a[key], b[key]) for a, b in pairs for key in a)


def main() -> None:
    """Run it twice and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default=str(Path(__file__).parent / "clocks.yaml"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    options = parser.parse_args()
    print(f"load average {', '.join(f'{each:.1f}' for each in os.getloadavg())}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        virtual, real = (
            load_record(fedstrata.run(options.experiment, out=f"{folder}/{clock}", overrides=overrides).folder)
            for clock in ("virtual", "real")
            for overrides in [[*options.overrides, f"clock={clock}"]]
        )
        apart = [100 * ratio - 100 for ratio in ratios(virtual, real)]
        rounds = [row for row in virtual.timeline if row.tier == "gps"]
        expected_s = rounds[-1].ends_s - rounds[0].begins_s
        trained = [record.summary.wall_seconds["train"] for record in (virtual, real)]
        print(f"LPS rounds: median {statistics.median(apart):+.2f} %, worst {max(apart, key=abs):+.2f} %")
        print(f"training: virtual {expected_s:.2f} s, real {trained[1]:.2f} s with the final measurement")
        faster = trained[1] / trained[0]
        print(f"training: {100 * trained[1] / expected_s - 100:+.2f} %; the virtual clock is {faster:.0f} times faster")
        print(f"equal bits of all models: {have_equal_models(virtual.folder, real.folder)}")
        if real.summary.real is not None:
            print(f"links.csv: {real.summary.real.outside} of {real.summary.real.links} outside")


if __name__ == "__main__":
    main()
