"""A rule that needs all updates at once: values wait on disk, and the order of arrival changes nothing."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fedstrata.rules.spool as spool_module
from fedstrata.errors import ExperimentError, NoUpdatesError, PayloadError, PluginError, StateError
from fedstrata.experiment_file import parse_experiment
from fedstrata.rules import Gathering, Route, Rule, of_updates, routed_shares
from fedstrata.rules.registry import gps_rule, lps_rule, make_rule, sends_sums
from fedstrata.rules.spool import Spool
from fedstrata.tensors import Flat

TEXT = """
name: ruled
partition: {kind: iid, devices: 4, examples_per_device: 10}
method: fedavg
"""
MEDIAN = "tests.support.medians:Median"


@cache
def rule(name: str = MEDIAN, **options: Any) -> Rule:
    """A rule, made as a server makes it: once, for all rounds."""
    section = ", ".join([f"name: '{name}'", *(f"{key}: {value}" for key, value in options.items())])
    return make_rule(parse_experiment(TEXT, overrides=[f"aggregation.lps={{{section}}}"]), "lps")


def f32(*values: float) -> Flat:
    return np.array(values, np.float32)


async def combined(gathering: Gathering) -> list[float]:
    await gathering.settle()
    return [float(value) for total in gathering.totals for value in total.mean()]


async def test_a_median_is_of_all_updates_and_a_child_that_is_forgotten_changes_nothing(tmp_path: Path) -> None:
    gathering = of_updates(rule(), 2, dict.fromkeys("abcd", 5), tmp_path)
    for child, values in {"a": f32(1, -1), "b": f32(2, 0), "c": f32(9, 1), "d": f32(1000, 1000)}.items():
        gathering.check(child, [5])
        gathering.take(child, 0, values[:1], [5])
        gathering.take(child, 1, values[1:], [5])
        gathering.accept(child, [5])
    assert gathering.forget("d")
    assert gathering.weights == [15]
    assert await combined(gathering) == [2, 0]


async def test_a_child_that_begins_again_replaces_its_values(tmp_path: Path) -> None:
    gathering = of_updates(rule(scale=0.5), 1, {"a": 1}, tmp_path)
    gathering.take("a", 0, f32(8), [1])
    assert gathering.forget("a")
    gathering.take("a", 0, f32(4), [1])
    gathering.accept("a", [1])
    assert await combined(gathering) == [2]


@given(
    updates=hnp.arrays(np.float32, (5, 7), elements=st.floats(-100, 100, width=32)),
    order=st.permutations(range(5)),
    cut=st.integers(0, 7),
    block=st.sampled_from([4, 40, 1 << 20]),
)
async def test_order_chunks_and_blocks_change_no_bit(
    tmp_path_factory: pytest.TempPathFactory, updates: Flat, order: list[int], cut: int, block: int
) -> None:
    names = [f"device-{index}" for index in range(5)]
    gathering = of_updates(rule(), 7, dict.fromkeys(names, 3), tmp_path_factory.getbasetemp() / "spool")
    for start, stop in ((0, cut), (cut, 7)):
        for index in order:
            gathering.take(names[index], start, updates[index, start:stop], [3])
    for index in order:
        gathering.accept(names[index], [3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_module, "BLOCK_BYTES", block)
        await gathering.settle()
    assert gathering.totals[0].mean().tobytes() == np.median(updates, axis=0).astype(np.float32).tobytes()


async def test_each_stream_has_the_median_of_the_devices_with_a_weight_in_it(tmp_path: Path) -> None:
    def routes(cluster: int) -> list[Route]:
        return [
            Route(place=slice(0, 1), stream=0, offset=0, weight=2),
            Route(place=slice(1, 2), stream=1 + cluster, offset=0, weight=2),
        ]

    found: Mapping[str, list[Route]] = {"a": routes(0), "b": routes(1), "c": routes(1)}
    gathering = Gathering(rule(), routed_shares([1, 1, 1], found, dict.fromkeys("abc", 2)), tmp_path)
    for child, values in {"a": f32(1, 10), "b": f32(5, 20), "c": f32(6, 40)}.items():
        gathering.take(child, 0, values, [2])
        gathering.accept(child, [2])
    assert await combined(gathering) == [5, 10, 30]


async def test_values_that_are_no_finite_numbers_are_refused_as_in_a_sum(tmp_path: Path) -> None:
    gathering = of_updates(rule(), 1, {"a": 1}, tmp_path)
    for value in (np.nan, np.inf, 2.0**19):
        with pytest.raises(PayloadError, match="must be finite and within"):
            gathering.take("a", 0, f32(value), [1])
    with pytest.raises(NoUpdatesError):
        await combined(gathering)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Short", r"combine must return finite numbers of shape \(2,\); it returned shape \(1,\)"),
        ("Words", "rule tests.support.medians:Words failed with ValueError"),
        ("Huge", r"combine must return finite numbers of shape \(2,\); .* with 2 values that are not finite"),
        ("Broken", "rule tests.support.medians:Broken.*ValueError: .*no number.*medians.py, line"),
    ],
)
async def test_a_rule_that_fails_is_named(name: str, message: str, tmp_path: Path) -> None:
    gathering = of_updates(rule(f"tests.support.medians:{name}"), 2, {"a": 1}, tmp_path)
    gathering.take("a", 0, f32(1, 2), [1])
    gathering.accept("a", [1])
    with pytest.raises(PluginError, match=message):
        await gathering.settle()


def test_updates_on_disk_have_no_name_and_are_gone_when_the_round_ends(tmp_path: Path) -> None:
    spool = Spool(3, tmp_path / "state")
    spool.write("a", 0, f32(1, 2, 3))
    assert [(start, stop, block.tolist()) for start, stop, block in spool.blocks(["a"])] == [(0, 3, [[1, 2, 3]])]
    assert list((tmp_path / "state").iterdir()) == []
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    spool.close()
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"cannot write updates in .*file"):
        Spool(3, tmp_path / "file")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("aggregation.lps=meen", "aggregation.lps.name: no rule is called 'meen'; did you mean mean"),
        ("aggregation.lps=[1]", "aggregation.lps: must be a name, or a mapping"),
        ("aggregation.lps={name: mean, cut: 1}", "aggregation.lps mean has no such option; its options are: none"),
        ("aggregation={device: mean}", "aggregation.device: unknown key"),
        ("aggregation.gps='tests.support.methods:Nobody'", "rule tests.support.methods:Nobody: cannot use Nobody"),
        ("aggregation.gps='fedstrata.methods:Method'", "must be a subclass of fedstrata.rules.Rule"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_its_key(section: str, message: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        parse_experiment(TEXT, overrides=[section])
    assert message in str(refused.value)


def test_the_mean_leaves_the_runs_id_as_it_is_and_another_rule_changes_it() -> None:
    usual = parse_experiment(TEXT)
    assert parse_experiment(TEXT, overrides=["aggregation={lps: mean, gps: {name: mean}}"]).run_id == usual.run_id
    ruled = parse_experiment(TEXT, overrides=[f"aggregation.lps={MEDIAN}"])
    assert ruled.run_id != usual.run_id
    assert parse_experiment(ruled.to_yaml()).run_id == ruled.run_id


def test_lpss_send_sums_only_if_both_tiers_take_the_mean() -> None:
    for section, are_sums in (
        ("aggregation={}", True),
        (f"aggregation.lps={MEDIAN}", False),
        (f"aggregation.gps={MEDIAN}", False),
    ):
        found = parse_experiment(TEXT, overrides=[section, "training.lps_rounds_per_global_round=1"])
        assert sends_sums(found, spans=True) is are_sums
        assert not sends_sums(found, spans=False)
    assert type(gps_rule(found, are_partial=False)).__name__ == "Median"
    masks = parse_experiment(TEXT, overrides=["secure_aggregation={min_devices: 3}"])
    assert type(lps_rule(masks)).__name__ == "MaskedMean"


def test_a_rule_refuses_features_like_a_method() -> None:
    with pytest.raises(
        ExperimentError, match=r"participation 2 does not go with aggregation.lps .*Alone: a cohort may"
    ):
        parse_experiment(TEXT, overrides=["training.participation=2", "aggregation.lps='tests.support.medians:Alone'"])
