"""Rules by products: their bits, their agreement with a plain implementation, and what liars do to them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import fedstrata.rules.spool as spool_module
from fedstrata.errors import ExperimentError, PluginError, RunStoppedError
from fedstrata.experiment_file import parse_experiment
from fedstrata.rules import of_parts, of_updates
from fedstrata.rules.products import Updates
from tests.support.rule_bits import BY_PRODUCTS, SIZE, SPOOLED, TEXT, bits, rule, sent

Rows = NDArray[np.float64]


async def combined(section: str, updates: Rows, folder: Path) -> NDArray[np.float32]:
    """What a parent computes by a rule."""
    names = [f"device-{index:03}" for index in range(len(updates))]
    gathering = of_updates(rule(section), updates.shape[1], dict.fromkeys(names, 1), folder)
    for name, row in zip(names, updates.astype(np.float32), strict=True):
        gathering.take(name, 0, row, [1])
        gathering.accept(name, [1])
    await gathering.settle()
    return gathering.totals[0].mean()


# --- bits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", SPOOLED)
async def test_fifty_orders_chunks_and_blocks_give_one_digest(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates, digests = sent(), set()
    for seed in range(50):
        draw = np.random.default_rng(seed)
        width = int(draw.choice([1 + SIZE // 300, 1000, SIZE // 2, SIZE - 1, SIZE]))  # SIZE - 1: a last block of one
        monkeypatch.setattr(spool_module, "BLOCK_BYTES", 4 * len(updates) * width)
        cuts = sorted(draw.integers(1, SIZE, draw.integers(0, 4)).tolist())
        digests.add(await bits(section, updates, [*draw.permutation([*updates])], cuts, tmp_path))
    assert len(digests) == 1


def test_other_kernels_of_openblas_and_numpy_give_the_same_digests(tmp_path: Path) -> None:
    def digests(**kernels: str) -> str:
        program = [sys.executable, "-m", "tests.support.rule_bits", str(tmp_path)]
        return subprocess.run(program, env=os.environ | kernels, capture_output=True, text=True, check=True).stdout

    usual = digests()
    assert len(usual.split()) == len(SPOOLED)
    assert digests(OPENBLAS_CORETYPE="Prescott", OPENBLAS_NUM_THREADS="2") == usual


# --- agreement ------------------------------------------------------------------------------------


def multi_krum(updates: Rows, lies: int) -> Rows:
    """As in the paper, with plain loops."""
    count, scores = len(updates), []
    for one in range(count):
        away = sorted(float(np.sum((updates[one] - updates[other]) ** 2)) for other in range(count) if other != one)
        scores.append(sum(away[: count - lies - 2]))
    kept = sorted(range(count), key=lambda child: scores[child])[: count - lies]
    found: Rows = np.mean(updates[kept], axis=0)
    return found


def geometric_median(updates: Rows) -> Rows:
    """The algorithm of Weiszfeld on the updates themselves."""
    point: Rows = updates.mean(axis=0)
    for _ in range(100):
        closeness = 1 / np.maximum(np.linalg.norm(updates - point, axis=1), 1e-6)
        point = (closeness @ updates) / closeness.sum()
    return point


def clipped_mean(updates: Rows) -> Rows:
    norms = np.linalg.norm(updates, axis=1)
    longest = sorted(norms)[(len(norms) - 1) // 2]
    return sum(row * min(1, longest / norm) for row, norm in zip(updates, norms, strict=True)) / len(norms)


def trusted(updates: Rows) -> Rows:
    """As in the paper, with device-001 at the server and in the mean."""
    reference, total, trust = updates[1], np.zeros(updates.shape[1]), 0.0
    for row in updates:
        cosine = row @ reference / np.linalg.norm(row) / np.linalg.norm(reference)
        total += max(cosine, 0) * np.linalg.norm(reference) / np.linalg.norm(row) * row
        trust += max(cosine, 0)
    return total / trust


PLAIN: dict[str, Callable[[Rows], Rows]] = {
    BY_PRODUCTS[0]: lambda updates: multi_krum(updates, max(0, min(2, len(updates) - 3))),
    BY_PRODUCTS[1]: geometric_median,
    BY_PRODUCTS[2]: clipped_mean,
    BY_PRODUCTS[3]: trusted,
}


@pytest.mark.parametrize("section", PLAIN)
async def test_rules_agree_with_plain_implementations_on_a_hundred_inputs(section: str, tmp_path: Path) -> None:
    for seed in range(100):
        draw = np.random.default_rng(seed)
        updates = draw.standard_normal((int(draw.integers(3, 20)), int(draw.integers(3, 300))))
        found = await combined(section, updates, tmp_path)
        np.testing.assert_allclose(found, PLAIN[section](updates.astype(np.float32).astype(float)), atol=1e-5)


def test_products_norms_and_distances_by_hand() -> None:
    block = np.float32([[3, 4], [0, 0], [-6, 0.5]])
    updates = Updates(["a", "b", "c"], np.array([1, 2, 3]), lambda: iter([(0, 1, block[:, :1]), (1, 2, block[:, 1:])]))
    assert updates.products.tolist() == [[25, 0, -16], [0, 0, 0], [-16, 0, 36.25]]
    assert updates.norms.tolist() == [5, 0, 36.25**0.5]
    assert updates.squared_distances[0].tolist() == [0, 25, 93.25]  # 9² + 3.5²
    assert updates.products_with([2]).tolist() == [[-16, 0, 36.25]]


# --- liars ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "children", "lies"),
    [("multi_krum", 10, 2), ("multi_krum", 4, 0), ("{name: multi_krum, attackers: 3}", 9, 3),
     ("{name: multi_krum, attackers: 3}", 8, 2), ("multi_krum", 1, 0), ("geometric_median", 10, 4),
     ("geometric_median", 2, 0)],
)  # fmt: skip
async def test_how_many_children_may_lie(section: str, children: int, lies: int, tmp_path: Path) -> None:
    assert rule(section).withstands(children) == lies
    updates = np.tile([1.0, 2.0, 3.0], (children, 1)) + 0.01 * np.random.default_rng(1).standard_normal((children, 3))
    updates[:lies] = [2e5, -2e5, 1e5]
    assert np.abs(await combined(section, updates, tmp_path) - [1, 2, 3]).max() < 0.1


async def test_multi_krum_leaves_out_as_many_as_are_stated_also_beyond_what_is_proven(tmp_path: Path) -> None:
    section = "{name: multi_krum, attackers: 0.25}"
    updates = np.array([[1.0], [1.1], [500.0], [1.3]])
    assert rule(section).withstands(4) == 0
    np.testing.assert_allclose(await combined(section, updates, tmp_path), [(1 + 1.1 + 1.3) / 3], rtol=1e-6)
    np.testing.assert_allclose(await combined(section, updates[:3], tmp_path), [502.1 / 3], rtol=1e-6)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("clipped_mean", [(1 * 3 + 2 * 3 + 4 * 3 + 4 * 3) / 11]),  # norms 3, 3, 4, 400; weights 1, 2, 9, 500
        ("{name: clipped_mean, norm: 4, cap: 1}", [(1 * 3 + 2 * 3 + 2 * 4 + 2 * 4) / 7]),
        ("{name: clipped_mean, norm: 1000, cap: 500}", [(1 * 3 + 2 * 3 + 9 * 4 + 500 * 400) / 512]),
    ],
)
async def test_a_child_far_from_others_or_with_too_many_examples_counts_little(
    section: str, expected: list[float], tmp_path: Path
) -> None:
    gathering = of_updates(rule(section), 1, dict.fromkeys("abcd", 500), tmp_path)
    for child, value, weight in (("a", 3, 1), ("b", 3, 2), ("c", 4, 9), ("d", 400, 500)):
        gathering.take(child, 0, np.array([value], np.float32), [weight])
        gathering.accept(child, [weight])
    await gathering.settle()
    assert gathering.totals[0].mean().tolist() == pytest.approx(expected, rel=1e-6)


async def test_a_rule_by_products_says_which_factors_it_has_chosen_and_a_median_has_none(tmp_path: Path) -> None:
    found = {}
    for section in ("{name: multi_krum, attackers: 1}", "{name: clipped_mean, norm: 3}", "median"):
        gathering = of_parts(rule(section), [1, 3], dict.fromkeys(("a", "b", "c", "d"), 5), tmp_path)
        for child, values in {"a": [1, 1, 1, 1], "b": [1, 1, 1, 1], "c": [1, 1, 1, 1], "d": [60, 1, 1, 1]}.items():
            gathering.take(child, 0, np.float32(values), [5])
            gathering.accept(child, [5])
        await gathering.settle()
        found[section[:12]] = gathering.factors
    # In the first stream, of one value, d is left out. In the second stream, of three values, all are equal, so the
    # last one is left out. Clipping takes 3 / 60 of d in the first stream.
    assert found["{name: multi"] == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3, "d": 0})
    assert found["{name: clipp"] == pytest.approx({"a": 1 / 4, "b": 1 / 4, "c": 1 / 4, "d": (3 / 60 + 3) / 16})
    assert found["median"] == {}


async def test_updates_of_zeros_change_nothing(tmp_path: Path) -> None:
    for section in BY_PRODUCTS:
        assert not (await combined(section, np.zeros((4, 3)), tmp_path)).any()


async def test_all_children_but_the_trusted_one_and_a_minority_under_clipping_have_bounded_effect(
    tmp_path: Path,
) -> None:
    honest = np.tile([1.0, 2.0, 3.0], (10, 1))
    section = "{name: trusted, children: [device-009]}"
    for lie in ([-2e5, -1e5, 0], [2e5, -2e5, 1e5]):  # the first points away from the trusted update
        updates = np.array([*[lie] * 9, honest[9]])
        found = await combined(section, updates, tmp_path)
        assert found @ honest[9] > 0
        assert np.linalg.norm(found) <= 14**0.5 + 1e-6
        assert (found == np.float32(honest[9])).all() == (lie[2] == 0)
        found = await combined("clipped_mean", np.array([*[lie] * 4, *honest[:6]]), tmp_path)
        assert np.linalg.norm(found) <= 14**0.5 + 1e-6
    assert (rule(section).withstands(10), rule("clipped_mean").withstands(10)) == (9, 4)


@pytest.mark.parametrize(
    ("tier", "child", "others"),
    [
        ("lps", "device-010", []),
        ("gps", "lps-2", []),
        ("lps", "device-009", ["newcomers={devices: [9], from_global_round: 2}"]),
    ],
)
def test_trusted_children_that_the_first_round_cannot_have_are_refused(
    tier: str, child: str, others: list[str]
) -> None:
    settings = [f"aggregation.{tier}={{name: trusted, children: [{child}]}}", "topology={lps: 2}", *others]
    refused = f"rule trusted: no child '{child}' takes part from the first round on; choose from {child[:4]}"
    with pytest.raises(ExperimentError, match=refused):
        parse_experiment(TEXT, overrides=settings)
    parse_experiment(TEXT, overrides=["aggregation.lps={name: trusted, children: [device-000]}", *others])


async def test_a_round_without_a_trusted_child_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunStoppedError, match="no trusted child sends these updates, only device-000, device-001;"):
        await combined("{name: trusted, children: [device-009]}", np.ones((2, 3)), tmp_path)
    with pytest.raises(ExperimentError, match=r"participation 2 does not go with aggregation.lps trusted: a round may"):
        parse_experiment(
            TEXT, overrides=["aggregation.lps={name: trusted, children: [device-000]}", "training.participation=2"]
        )


@pytest.mark.parametrize("attackers", ["-1", "0.5", "1.5", "yes", "half"])
def test_an_impossible_number_of_attackers_is_refused(attackers: str) -> None:
    with pytest.raises(ExperimentError, match=r"aggregation\.lps\.attackers"):
        rule(f"{{name: multi_krum, attackers: {attackers}}}")


async def test_an_own_rule_by_products_and_one_that_returns_too_little(tmp_path: Path) -> None:
    updates = np.array([[1.0, 0.0], [0.0, 2.0], [30.0, 40.0]])
    found = await combined("'tests.support.medians:Equal'", updates, tmp_path)
    np.testing.assert_allclose(found, [(1 + 0.6) / 3, (1 + 0.8) / 3], rtol=1e-6)  # each of norm 1
    with pytest.raises(PluginError, match=r"factors must return finite numbers of shape \(3,\), not array\(\[1\.\]\)"):
        await combined("'tests.support.medians:Single'", updates, tmp_path)
