"""Measure how much eigenvectors reveal about single examples; draw the figures of docs/results/privacy.md.

`python -m benchmarks.privacy attack --figure attack.svg` distinguishes examples of a device from other examples of the
same classes, by the part of each example that lies in the span of the device's eigenvectors. It prints the area under
the ROC curve: 0.5 is guessing, 1 is knowing. `python -m benchmarks.privacy draw TABLE --figure profiles.svg` draws what
`python -m benchmarks.grouping experiments/sweeps/privacy_profiles.yaml` has printed, and `python -m benchmarks.privacy
updates table.csv --figure updates.svg` what `fedstrata sweep experiments/sweeps/privacy_updates.yaml` has left.
"""

import argparse
import csv
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from fedstrata.datasets import load_dataset
from fedstrata.experiment import DataSettings
from fedstrata.experiment.privacy import ProfilePrivacy
from fedstrata.methods.profiles.private_profiles import private_spectrum
from fedstrata.methods.profiles.relevance import Matrix, Spectrum, spectrum_of
from fedstrata.noise import ResearchNoise

Labels = NDArray[np.int64]
Areas = Mapping[str, Mapping[float, list[float]]]  # by kind of answer and size of the device, one per seed
CLOTHES, EXAMPLES = (0, 1, 2, 3, 4, 6), 20000
SEEDS = range(3, 8)
SIZES = (5, 20, 50, 100, 200, 1000)  # numbers of examples of the device
EPSILONS = (None, 64.0, 16.0)
EIGENVECTORS, OTHERS, CLIP = 5, 400, 5.0


def spectrum(rows: Matrix, epsilon: float | None, seed: int) -> Spectrum:
    """Return the eigenvectors of a device's rows, noised if there is an ε."""
    if epsilon is None:
        return spectrum_of(rows)
    settings = ProfilePrivacy(epsilon=epsilon, clip=CLIP, min_examples=1)
    return private_spectrum(rows, settings, ResearchNoise(seed, f"a device of {len(rows)}"))


def advantage(members: Matrix, others: Matrix, shared: Matrix) -> float:
    """Return the area under the ROC curve of recognising members by their share in the span of `shared`."""
    rows = np.concatenate([members, others])
    inside = np.sum((rows @ shared.T) ** 2, axis=1) / np.sum(rows**2, axis=1)
    return float(roc_auc_score([1] * len(members) + [0] * len(others), inside))


def attacked(rows: Matrix, sizes: Sequence[int], epsilons: Sequence[float | None] = EPSILONS) -> Areas:
    """Return, by noise and size of the device, the area under the ROC curve for each seed. The rows, shape (N, d), are
    raw pixels.
    """
    found: dict[float | None, dict[float, list[float]]] = {e: {size: [] for size in sizes} for e in epsilons}
    for seed in SEEDS:
        order = np.random.default_rng([seed, 0x617474]).permutation(len(rows))
        others = rows[order[-OTHERS:]]
        for epsilon, size in product(epsilons, sizes):
            members = rows[order[:size]]
            shared = spectrum(members, epsilon, seed).profile(EIGENVECTORS).astype(np.float64)
            found[epsilon][size].append(advantage(members, others, shared))
    return {"no noise" if epsilon is None else f"ε {epsilon:g}": areas for epsilon, areas in found.items()}


def clothes() -> tuple[Matrix, Labels]:
    """Return raw pixels (N, d) and labels of the first examples of the attacked classes."""
    train = load_dataset(DataSettings(name="fashion-mnist"), 0).train
    examples = train.take(np.flatnonzero(np.isin(train.labels, CLOTHES))[:EXAMPLES])
    return examples.inputs.astype(np.float64).reshape(len(examples), -1), examples.labels


def show(areas: Areas, sizes: Sequence[int], path: Path) -> None:
    """Print a table with a row per size and a column per kind of answer, and draw a line per kind of answer."""
    lines = {name: {n: (fmean(v), stdev(v)) for n, v in points.items()} for name, points in areas.items()}
    print(f"| examples of the device | {' | '.join(lines)} |\n|---:|{'---:|' * len(lines)}")
    for size in sizes:
        said = ["{:.2f} ± {:.2f}".format(*points[size]) for points in lines.values()]
        print(f"| {size} | {' | '.join(said)} |")
    figure(lines, path, across="examples of the device", up="area under the ROC curve", ticks=sizes)


def drawn(table: str) -> dict[str, dict[float, tuple[float, float]]]:
    """Return the lines of a figure, each with mean and deviation by ε, from a table of benchmarks.grouping."""
    head, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
    found: dict[str, dict[float, tuple[float, float]]] = {}
    for minority, *cells in rows:
        for name, cell in zip(head[1:], cells, strict=True):
            _, vectors, epsilon = name.split("-")
            if epsilon != "none":
                mean, deviation = (float(part.replace("−", "-")) for part in cell.split("±"))
                label = f"{vectors} eigenvector{'s' if vectors != '1' else ''}, minority {minority}"
                found.setdefault(label, {})[float(epsilon)] = (mean, deviation)
    return found


def updates(table: str) -> tuple[dict[str, dict[float, tuple[float, float]]], dict[str, float]]:
    """Return the accuracies in percent, as mean and deviation by ε, for each kind of noise. Also return the mean
    accuracies of the cells without noise.
    """
    lines: dict[str, dict[float, tuple[float, float]]] = {}
    others: dict[str, float] = {}
    for row in csv.DictReader(table.splitlines()):
        if row["measure"] != "device_mean_accuracy":
            continue
        mean, deviation = 100 * float(row["mean"]), 100 * float(row["std"])
        covered, _, epsilon = row["cell"].partition("-")
        if epsilon:
            label = {"update": "each update", "sum": "sums of 100 under masks"}[covered]
            lines.setdefault(label, {})[float(epsilon)] = (mean, deviation)
        else:
            others[{"local": "local training", "none": "FedAvg, no noise"}[covered]] = mean
    return lines, others


def figure(
    lines: Mapping[str, Mapping[float, tuple[float, float]]],
    path: Path,
    *,
    across: str,
    up: str,
    ticks: Sequence[float],
    levels: Mapping[str, float] | None = None,
) -> None:
    """Draw lines with deviations over a logarithmic axis, and horizontal lines for values without noise."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "fedstrata", "font.size": 9})
    drawing, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    for label, points in lines.items():
        means, deviations = zip(*points.values(), strict=True)
        axes.errorbar(list(points), means, yerr=deviations, label=label, marker="o", markersize=3, capsize=2)
    for (label, level), style in zip((levels or {}).items(), ("--", ":"), strict=False):
        axes.axhline(level, label=label, linestyle=style, color="0.4")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    drawing.savefig(path, metadata={"Date": None})


def options_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that both attacks have."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--figure", type=Path, required=True)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=SIZES, help="numbers of examples of the attacked device"
    )
    return parser


def main() -> None:
    """Attack, or draw a figure."""
    parser = options_of(__doc__)
    parser.add_argument("what", choices=["attack", "draw", "updates"])
    parser.add_argument("table", type=Path, nargs="?")
    asked = parser.parse_args()
    if asked.what == "attack":
        show(attacked(clothes()[0], asked.sizes), asked.sizes, asked.figure)
    else:
        if asked.table is None:
            parser.error(f"{asked.what} needs the table")
        table = asked.table.read_text(encoding="utf-8")
        levels: dict[str, float] = {}
        if asked.what == "draw":
            found, up = drawn(table), "adjusted Rand index"
        else:
            (found, levels), up = updates(table), "accuracy, %"
        ticks = sorted({epsilon for points in found.values() for epsilon in points})
        figure(found, asked.figure, across="ε", up=up, ticks=ticks, levels=levels)


if __name__ == "__main__":
    with threadpool_limits(1):  # as in a device process
        main()
