"""Many devices grouped by label means: CPU time and memory of the GPS's plan, and its adjusted Rand index.

`python -m benchmarks.many_label_means --devices 1000 10000` makes devices with Fashion-MNIST images in four
orientations and label shares of their own (Dirichlet, concentration 1), and times `LabelMeans.plan` alone.
"""

import argparse
import time
import tracemalloc

import numpy as np
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from fedstrata.datasets import load_dataset
from fedstrata.experiment import DataSettings
from fedstrata.methods import Answers, Arrays, Candidate, Facts, Moment
from fedstrata.methods.label_means import LABELS, SUMS, LabelMeans
from fedstrata.methods.profiles.label_means import label_sums, projected

GROUPS, CLASSES, SEED, ROWS, IMAGES = 4, 10, 51, 64, 20000
MEBI = 1 << 20


def answers_of(devices: int, examples: int) -> dict[int, Arrays]:
    """Return the answers of devices. Every fourth device has its images turned in the same way."""
    train = load_dataset(DataSettings(name="fashion-mnist"), 0).train
    some = train.take(np.arange(IMAGES))
    images, labels = some.inputs.astype(np.float64).reshape(IMAGES, 28, 28), some.labels
    turned = [
        projected(np.rot90(images, group, (1, 2)).reshape(IMAGES, -1), ROWS, SEED, clip=1.0) for group in range(GROUPS)
    ]
    of_label = [np.flatnonzero(labels == label) for label in range(CLASSES)]
    rng = np.random.default_rng([SEED, devices])
    found: dict[int, Arrays] = {}
    for device in range(devices):
        counts = rng.multinomial(examples, rng.dirichlet(np.ones(CLASSES)))
        chosen = np.concatenate([rng.choice(of_label[label], counts[label]) for label in range(CLASSES)])
        sums = label_sums(turned[device % GROUPS][chosen], labels[chosen], CLASSES)
        found[device] = {SUMS: sums.astype(np.float32)}
    return found


def measure(devices: int, examples: int) -> tuple[float, float, float, float]:
    """Return the CPU seconds of the plan, the MiB of the answers, the MiB of the plan's peak beyond the answers, and
    the adjusted Rand index.
    """
    given = answers_of(devices, examples)
    facts = Facts(device_count=devices, seed=SEED, input_shape=(1, 28, 28), num_classes=CLASSES)
    method = LabelMeans(LabelMeans.Options(name="label_means", clusters=GROUPS), facts)
    candidates = [Candidate(device_index=index, num_examples=examples) for index in given]
    answers = Answers(candidates, {LABELS: given})
    start = time.process_time()
    plan = method.plan(Moment.BEFORE, answers, None)
    seconds = time.process_time() - start
    tracemalloc.start()
    method.plan(Moment.BEFORE, answers, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    answered = sum(arrays[SUMS].nbytes for arrays in given.values())
    found = [plan.cluster_of(device) for device in range(devices)]
    index = adjusted_rand_score([device % GROUPS for device in range(devices)], found)
    return seconds, answered / MEBI, peak / MEBI, float(index)


def main() -> None:
    """Print a row for each number of devices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--examples", type=int, default=200, help="examples per device")
    asked = parser.parse_args()
    print("| devices | CPU s | answers, MiB | plan, MiB | ARI |\n|---:|---:|---:|---:|---:|")
    for devices in asked.devices:
        seconds, answered, peak, index = measure(devices, asked.examples)
        print(f"| {devices} | {seconds:.1f} | {answered:.1f} | {peak:.1f} | {index:.3f} |", flush=True)


if __name__ == "__main__":
    with threadpool_limits(2):
        main()
