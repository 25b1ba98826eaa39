"""Fashion-MNIST over six seeds: eigen-relevance clusters against random clusters of the same sizes.

    .venv/bin/python benchmarks/fmnist_seeds.py runs/fmnist

runs experiments/fmnist_three_tasks.yaml and experiments/fmnist_random.yaml with seeds 0 to 5 through `fedstrata run`,
each into a folder of its own, compares them with `fedstrata compare`, and prints the README's table. A folder that
holds a finished run is not run again.
"""

import subprocess
import sys
from pathlib import Path

from emulator.compare import Comparison, Group, compare

EXPERIMENTS = ("fmnist_three_tasks", "fmnist_random")
SEEDS = range(6)
NAMES = {"one_shot": "one-shot eigen-relevance", "random": "random, same sizes"}


def main(folder: Path) -> None:
    """Run what is missing, then compare."""
    runs = [(name, seed, folder / f"{name}-{seed}") for seed in SEEDS for name in EXPERIMENTS]
    for name, seed, out in runs:
        if not (out / "summary.json").exists():
            print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
            fedstrata("run", f"experiments/{name}.yaml", "--seed", str(seed), "--out", str(out), "--quiet")
    outs = [out for _, _, out in runs]
    fedstrata("compare", *map(str, outs), "--out", str(folder / "comparison"))
    print(readme_table(compare(outs)))


def fedstrata(*arguments: str) -> None:
    """One command, as the README has it; its failure ends the benchmark."""
    subprocess.run([sys.executable, "-m", "emulator", *arguments], check=True)


def readme_table(comparison: Comparison) -> str:
    """Accuracy per task in percent, mean ± sample standard deviation over seeds, as Markdown."""
    head = ["clusters", *comparison.tasks, "adjusted Rand index"]
    rows = [
        [NAMES[group.method], *(str(group.accuracy(task)) for task in comparison.tasks), index_of(group)]
        for group in comparison.groups
    ]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def index_of(group: Group) -> str:
    """The mean over seeds, with the least and the greatest where they differ."""
    known = [run.summary.adjusted_rand_index for run in group.runs if run.summary.adjusted_rand_index is not None]
    least, greatest = min(known), max(known)
    spread = "" if least == greatest else f" ({least:.2f} to {greatest:.2f})"
    return f"{sum(known) / len(known):.2f}{spread}"


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/fmnist"))
