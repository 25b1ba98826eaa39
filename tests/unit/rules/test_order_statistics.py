"""Median and trimmed mean: beside NumPy and SciPy, by hand, and what one liar does to them."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import parse_experiment
from fedstrata.rules import AllUpdates, of_updates
from fedstrata.rules.registry import make_rule
from fedstrata.tensors import Flat

TEXT = """
name: robust
partition: {kind: iid, devices: 10, examples_per_device: 10}
method: fedavg
"""


@cache
def rule(section: str) -> AllUpdates:
    found = make_rule(parse_experiment(TEXT, overrides=[f"aggregation.lps={section}"]), "lps")
    assert isinstance(found, AllUpdates)
    return found


def ones(children: int) -> np.ndarray:
    return np.ones(children, np.int64)


blocks = st.integers(1, 12).flatmap(
    lambda children: hnp.arrays(np.float32, (children, 5), elements=st.floats(-1000, 1000, width=32))
)


@given(blocks, st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.4, 0.49]))
def test_they_agree_with_numpy_and_scipy(updates: Flat, cut: float) -> None:
    weights = ones(len(updates))
    assert rule("median").combine(updates, weights).tolist() == np.median(updates, axis=0).tolist()
    expected = stats.trim_mean(updates.astype(np.float64), round(cut, 2), axis=0)
    found = rule(f"{{name: trimmed_mean, cut: {cut}}}").combine(updates, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@given(blocks, st.randoms(use_true_random=False))
def test_the_order_of_children_changes_no_bit(updates: Flat, random: object) -> None:
    shuffled = np.random.default_rng(len(updates)).permutation(updates)
    for section in ("median", "trimmed_mean"):
        one, other = (rule(section).combine(each, ones(len(each))) for each in (updates, shuffled))
        assert (one + 0.0).tobytes() == (other + 0.0).tobytes()  # 0.0 and -0.0 are one value


async def test_one_of_five_who_lies_moves_the_mean_but_neither_of_the_two(tmp_path: Path) -> None:
    values = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 1e5}
    found = {}
    for section in ("mean", "median", "trimmed_mean"):
        made = make_rule(parse_experiment(TEXT, overrides=[f"aggregation.lps={section}"]), "lps")
        gathering = of_updates(made, 1, dict.fromkeys(values, 10), tmp_path)
        for child, value in values.items():  # the liar also states ten times its examples
            gathering.take(child, 0, np.float32([value]), [10 if child == "e" else 1])
            gathering.accept(child, [10 if child == "e" else 1])
        await gathering.settle()
        found[section] = float(gathering.totals[0].mean()[0])
    assert found["mean"] > 70_000
    assert found["median"] == 3.0
    assert found["trimmed_mean"] == 3.0  # (2 + 3 + 4) / 3


@pytest.mark.parametrize(
    ("section", "children", "lies"),
    [("median", 10, 4), ("median", 3, 1), ("median", 1, 0), ("trimmed_mean", 10, 2), ("trimmed_mean", 4, 0),
     ("{name: trimmed_mean, cut: 0.1}", 30, 3)],
)  # fmt: skip
def test_how_many_children_may_lie(section: str, children: int, lies: int) -> None:
    found = rule(section)
    assert found.withstands(children) == lies
    honest = np.linspace(1, 2, children - lies, dtype=np.float32)
    updates = np.concatenate([honest, np.full(lies, 1e5, np.float32)])[:, None]
    assert 1 <= found.combine(updates, ones(children))[0] <= 2


@pytest.mark.parametrize("cut", ["0", "0.5", "-1", "yes"])
def test_a_cut_that_leaves_nobody_or_cuts_nobody_is_refused(cut: str) -> None:
    with pytest.raises(ExperimentError, match=r"aggregation\.lps\.cut"):
        rule(f"{{name: trimmed_mean, cut: {cut}}}")
