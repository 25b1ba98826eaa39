"""A round of a hundred devices with each method, beside FedAvg's: seconds, and CPU time by tier.

`python -m benchmarks.methods [--rounds 12] [--only ifca ...]` needs Fashion-MNIST and no network, unless an
`--experiment` of one's own has other data. Seconds depend on
what else the machine does; CPU time hardly does, so that its ratio is what counts where the machine is not idle.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.suite.observed import Observed, observe
from fedstrata.methods.registry import NAMES

EXPERIMENT = Path(__file__).parent / "hundred.yaml"
# what a method needs to be told; without it every device would be a stream of its own, say
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "adaptive": {"clusters": 4},
    "ifca": {"clusters": 4},
    "one_shot": {"clusters": 4},
    "pacfl": {"clusters": 4},
    "random": {"clusters": 4},
    "user_centric": {"streams": 4},
}
# a hundred devices have all examples there are; ten fewer each leave a thousand that belong to nobody
PUBLIC = ("partition.public.examples=1000", *(f"partition.tasks.{task}.examples_per_device=590" for task in range(10)))


def settings_of(method: str, rounds: int) -> list[str]:
    """The keys in which a method's run differs from `hundred`."""
    section = json.dumps({"name": method, **OPTIONS.get(method, {})})
    public = PUBLIC if method == "fedtsdp" else ()
    return [f"method={section}", f"training.global_rounds={rounds}", *public]


def row(method: str, seen: Observed, plain: Observed) -> str:
    """A line of the table."""
    cpu, plain_cpu = (sum(each.cpu_s[tier] for tier in ("gps", "lps", "device")) for each in (seen, plain))
    tiers = " | ".join(f"{seen.cpu_s[tier]:.2f}" for tier in ("device", "lps", "gps"))
    times = seen.round_s / plain.round_s
    return f"| {method} | {seen.round_s:.2f} | {times:.2f} | {tiers} | {cpu / plain_cpu:.2f} |"


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="of each method; the first is left out of CPU time")
    parser.add_argument("--only", nargs="*", default=[name for name in NAMES if name != "fedavg"], choices=NAMES)
    parser.add_argument("--experiment", type=Path, default=EXPERIMENT)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one run")
    options = parser.parse_args()
    print(f"load average {', '.join(f'{each:.1f}' for each in os.getloadavg())}, {os.cpu_count()} cores\n")
    print("| method | round, s | of fedavg's | CPU: devices, s | LPS | GPS | of fedavg's |\n|---|" + "---:|" * 6)
    with tempfile.TemporaryDirectory() as folder:
        plain: Observed | None = None
        for method in ("fedavg", *options.only):
            place = Path(folder) / method
            place.mkdir()
            settings = settings_of(method, options.rounds)
            seen = observe(options.experiment, place, settings=settings, timeout_s=options.timeout)
            plain = plain or seen
            print(row(method, seen, plain), flush=True)
    print(f"\nload average {', '.join(f'{each:.1f}' for each in os.getloadavg())} at the end")


if __name__ == "__main__":
    main()
