"""What a correction of gradients costs: FedProx beside plain SGD, a hundred devices trained together.

    python -m benchmarks.corrections --devices 100 --pairs 20

Each device trains the 784-32-10 network for one epoch on 600 images, batch 32, on one thread; plain and corrected in
turn, CPU time. `same` pulls all devices to one vector, `own` each to its own. docs/decisions/stacked-training.md.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from device.stacked.training import Stacked
from device.training import TrainingJob, limit_threads
from fedstrata.datasets import DatasetInfo, Pixels
from fedstrata.experiment import ModelSettings, SgdSettings, TrainingSettings
from fedstrata.models import build_model
from fedstrata.process.heap import keep_for_training

INFO = DatasetInfo(input_shape=(28, 28), num_classes=10)
MODEL = build_model(ModelSettings(hidden=(32,)), INFO)


@dataclass(frozen=True)
class Pull:
    """The gradient of mu/2 ||w − w_t||² is added."""

    mu: float = 0.01

    def __call__(self, gradient: torch.Tensor, weights: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        return gradient.add_(weights, alpha=self.mu).add_(to, alpha=-self.mu)


def job(device: int, momentum: float) -> TrainingJob:
    """One device's epoch of plain SGD."""
    rng = np.random.default_rng(device)
    images = rng.integers(0, 256, (600, 28, 28), dtype=np.uint8)
    optimiser = SgdSettings(momentum=momentum)
    return TrainingJob(
        model=MODEL,
        start=MODEL.initial(0),
        examples=Pixels(values=images, labels=rng.integers(0, 10, 600)),
        training=TrainingSettings(local_epochs=1, batch_size=32, optimiser=optimiser),
        seed=1,
        device_index=device,
        lps_round=0,
        global_round=0,
    )


def cpu_ms(jobs: Sequence[TrainingJob]) -> float:
    """CPU time of training them."""
    started = time.process_time()
    Stacked().train(jobs)
    return (time.process_time() - started) * 1e3


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    limit_threads()
    keep_for_training()
    for momentum in (0.0, 0.9):
        plain = [job(device, momentum) for device in range(options.devices)]
        ways = {
            "plain": plain,
            "same": [replace(each, correct=Pull(), beside=(each.start.copy(),)) for each in plain],
            "own": [replace(each, correct=Pull(), beside=(MODEL.initial(each.device_index),)) for each in plain],
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.pairs + 1):
            for name, jobs in ways.items():
                times[name].append(cpu_ms(jobs))
        for name, taken in times.items():
            pairs = [each / beside for each, beside in zip(taken[1:], times["plain"][1:], strict=True)]
            median = statistics.median(taken[1:])
            print(f"momentum {momentum}: {name:>5} {median:6.1f} ms, {statistics.median(pairs):.2f} of plain")


if __name__ == "__main__":
    main()
