"""Rules and attacks agree with those of ByzFL (https://github.com/LPD-EPFL/byzfl), an independent library, on a hundred
inputs.
"""

import importlib
import sys
from collections.abc import Iterator
from importlib import util
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedstrata.attacks import Attack
from fedstrata.attacks.alie import ALittleIsEnough
from fedstrata.attacks.inner_product import InnerProduct
from fedstrata.attacks.sign_flip import SignFlip
from fedstrata.rules.base import AllUpdates
from tests.support.rule_bits import rule

Rows = NDArray[np.float32]

pytestmark = pytest.mark.skipif(util.find_spec("byzfl") is None, reason="ByzFL is not here; `make setup` installs it")


@pytest.fixture(scope="module")
def byzfl() -> Iterator[SimpleNamespace]:
    """Its rules and attacks. The package itself would import seaborn and torchvision, which these do not need."""
    spec = util.find_spec("byzfl")
    assert spec is not None
    sys.modules["byzfl"] = util.module_from_spec(spec)
    yield SimpleNamespace(
        **vars(importlib.import_module("byzfl.aggregators")) | vars(importlib.import_module("byzfl.attacks"))
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "byzfl"]:
        del sys.modules[name]


def inputs(least: int = 4) -> Iterator[Rows]:
    """A hundred sets of updates, some with one far from all others."""
    for seed in range(100):
        draw = np.random.default_rng(seed)
        rows = draw.standard_normal((int(draw.integers(least, 20)), int(draw.integers(3, 300))), np.float32)
        rows[seed % len(rows)] *= draw.choice([1, 10])
        yield rows


def combined(section: str, rows: Rows) -> Rows:
    """What a parent computes by a rule, of all elements in one block."""
    found = rule(section)
    assert isinstance(found, AllUpdates)
    children = [f"device-{index:03}" for index in range(len(rows))]
    weights = np.ones(len(rows), np.int64)
    return found.combiner(children, weights, lambda: iter([(0, rows.shape[1], rows)])).combine(rows)


def agree(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_median_and_trimmed_mean(byzfl: SimpleNamespace) -> None:
    for rows in inputs():
        agree(combined("median", rows), byzfl.Median()(rows))
        cut = int(0.2 * len(rows))
        agree(combined("{name: trimmed_mean, cut: 0.2}", rows), byzfl.TrMean(cut)(rows))


def test_multi_krum(byzfl: SimpleNamespace) -> None:
    """ByzFL's scores have n − f − 1 neighbours, the paper's and ours n − f − 2. Liars far away decide both alike."""
    for number, rows in enumerate(inputs(7)):
        lies = number % 3
        rows[:lies] += 50
        agree(combined(f"{{name: multi_krum, attackers: {lies}}}", rows), byzfl.MultiKrum(lies)(rows))


def test_geometric_median(byzfl: SimpleNamespace) -> None:
    for rows in inputs():
        agree(combined("geometric_median", rows), byzfl.GeometricMedian(nu=1e-6, T=101)(rows))


def test_clipped_mean(byzfl: SimpleNamespace) -> None:
    for rows in inputs():
        longest = float(np.sort(np.linalg.norm(rows, axis=1))[(len(rows) - 1) // 2])
        agree(combined("clipped_mean", rows), byzfl.Average()(byzfl.Clipping(longest)(rows.copy())))
        agree(combined("{name: clipped_mean, norm: 8}", rows), byzfl.Average()(byzfl.Clipping(8.0)(rows.copy())))


def lie(attack: Attack, known: Rows) -> Rows:
    """What attackers send, computed in two blocks."""
    half = known.shape[1] // 2
    return np.concatenate([*attack.collude(lambda: iter([known[:, :half], known[:, half:]]), 2, len(known) + 2)])


def test_inner_product_and_sign_flip(byzfl: SimpleNamespace) -> None:
    inner_product = InnerProduct(InnerProduct.Options(name="inner_product", times=2, devices=[0, 1]))
    sign_flip = SignFlip(SignFlip.Options(name="sign_flip", devices=[0]))
    for rows in inputs():
        agree(lie(inner_product, rows), byzfl.InnerProductManipulation(2.0)(rows))
        agree(sign_flip.update(rows[0], np.random.default_rng(0)), byzfl.SignFlipping()(rows[:1]))


def test_a_little_is_enough(byzfl: SimpleNamespace) -> None:
    """ByzFL adds deviations, and divides by n − 1. The paper subtracts them, and does not say by what it divides."""
    for rows in inputs():
        z = 1.5 * (len(rows) / (len(rows) - 1)) ** 0.5
        alie = ALittleIsEnough(ALittleIsEnough.Options(name="alie", z=z, devices=[0, 1]))
        agree(lie(alie, rows), byzfl.ALittleIsEnough(-1.5)(rows))
