"""What secure aggregation costs: a device's masks, and echo rounds with masks and without, in pairs.

    python -m benchmarks.masks --devices 10 --mb 1 10

The first table is processor time of one thread for one update; the second the median round of `benchmarks/echo.py`,
plain and masked in turn, and the ratio of each pair. Bytes are what devices send of an update.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.echo import MASKED, measure
from device.masking.masks import Masks
from device.masking.proofs import Proofs
from fedstrata.experiment_file import parse_experiment
from fedstrata.rounds import Update
from fedstrata.tensors import ExactSum, Layout, PayloadCodec
from fedstrata.v1 import rounds_pb2 as pb

DEVICES = (5, 10, 32, 100)


def seconds_of_masks(devices: int, size: int) -> tuple[float, float]:
    """Processor seconds to put an update of so many weights on the grid, and to do so and mask it."""
    experiment = parse_experiment(
        f"{{name: masks, partition: {{kind: iid, devices: {devices}, examples_per_device: 1}}, "
        "secure_aggregation: {min_devices: 3}}"
    )
    proofs = Proofs(experiment.run_id, None)
    masks = [Masks(experiment, device_id, proofs) for device_id in experiment.device_ids()]
    roster = pb.Roster(max_examples=devices, certificates=[b""])
    for device_id, each in zip(experiment.device_ids(), masks, strict=True):
        roster.members.add(device_id=device_id, public_key=each.key.public_key)
    masks[0].take(roster)
    flat = np.random.default_rng(0).normal(0, 0.01, size).astype(np.float32)
    layout = Layout.of({"w": (size,)})
    update = Update(
        round=0, num_examples=1, codec=PayloadCodec(layout, "float32"), read=lambda start, stop: flat[start:stop]
    )

    def on_grid() -> None:
        total = ExactSum(size, devices)
        total.add(flat, 1)
        total.sums()

    return _processor_s(on_grid), _processor_s(lambda: masks[0].masked(update))


def _processor_s(work: Callable[[], object]) -> float:
    """The least of three."""
    found = []
    for _ in range(3):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def pair(devices: int, size: int, rounds: int) -> tuple[float, float]:
    """Median seconds of a round, plain and masked."""
    plain, _ = measure("echo", devices, size, rounds)
    os.environ[MASKED] = "1"
    try:
        masked, _ = measure("echo", devices, size, rounds)
    finally:
        del os.environ[MASKED]
    return plain, masked


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--mb", type=float, nargs="+", default=[0.1, 1, 10])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{'devices':>8} {'MB':>6} {'grid s':>8} {'masked s':>9}")
    for devices in DEVICES:
        for mb in options.mb:
            grid_s, masked_s = seconds_of_masks(devices, int(mb * 1e6) // 4)
            print(f"{devices:>8} {mb:>6g} {grid_s:>8.4f} {masked_s:>9.4f}", flush=True)
    print(f"{'devices':>8} {'MB':>6} {'plain s':>8} {'masked s':>9} {'ratio':>6} {'MB up':>6} {'MB masked':>10}")
    for mb in options.mb:
        size = int(mb * 1e6) // 40 * 40
        pairs = [pair(options.devices, size, options.rounds) for _ in range(options.repeats)]
        plain, masked = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(masked / plain for plain, masked in pairs)
        row = f"{options.devices:>8} {mb:>6g} {plain:>8.4f} {masked:>9.4f} {ratio:>6.2f}"
        print(f"{row} {size / 1e6:>6g} {2 * size / 1e6:>10g}", flush=True)


if __name__ == "__main__":
    main()
