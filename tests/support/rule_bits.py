"""The bits of a rule's combined update, for one order of arrival. As a program, it prints one digest per rule."""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedstrata.experiment_file import parse_experiment
from fedstrata.rules import of_updates
from fedstrata.rules.base import Rule
from fedstrata.rules.registry import make_rule
from fedstrata.tensors import Flat

TEXT = """
name: robust
partition: {kind: iid, devices: 10, examples_per_device: 10}
method: fedavg
"""
SIZE = 40_003
BY_PRODUCTS = (
    "{name: multi_krum, attackers: 2}",
    "geometric_median",
    "clipped_mean",
    "{name: trusted, children: [device-001]}",
)
SPOOLED = ("median", "{name: trimmed_mean, cut: 0.3}", *BY_PRODUCTS)


@cache
def rule(section: str) -> Rule:
    """A rule, made as a server makes it: once, for all rounds."""
    return make_rule(parse_experiment(TEXT, overrides=[f"aggregation.lps={section}"]), "lps")


def sent(children: int = 11) -> dict[str, Flat]:
    """Updates of very different sizes, by child."""
    draw = np.random.default_rng(7)
    scales = np.float32([1e-3, 1, 1, 1, 1, 1, 1, 1, 1.5, 30, 2000])
    rows = scales[:children, None] * draw.standard_normal((children, SIZE), np.float32) + np.float32(0.3)
    return {f"device-{index:03}": row for index, row in enumerate(rows)}


async def bits(section: str, updates: dict[str, Flat], order: Sequence[str], cuts: Sequence[int], folder: Path) -> str:
    """The SHA-256 of the combined update. Children send in this order, each in pieces between the cuts."""
    gathering = of_updates(rule(section), SIZE, dict.fromkeys(updates, 50), folder)
    weights = {child: [1 + index % 5 * 7] for index, child in enumerate(updates)}
    for start, stop in pairwise([0, *sorted(cuts), SIZE]):
        for child in order:
            gathering.take(child, start, updates[child][start:stop], weights[child])
    for child in reversed(order):
        gathering.accept(child, weights[child])
    await gathering.settle()
    return sha256(gathering.totals[0].mean().tobytes()).hexdigest()


if __name__ == "__main__":
    for each in SPOOLED:
        with tempfile.TemporaryDirectory(dir=sys.argv[1]) as place:
            print(asyncio.run(bits(each, sent(), [*sent()], [], Path(place))))
