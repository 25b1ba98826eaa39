"""A rule and an attack of the user's own, each in 20 lines that need only the pages, on this machine."""

from pathlib import Path

import numpy as np
import pytest

from fedstrata.experiment_file import parse_experiment
from tests.support.opposing import Opposing
from tests.support.own_rule import EXPERIMENT, FILES, HERE, written
from tests.support.records import rows_of
from tests.support.tiers import run_in_process


def test_each_has_at_most_20_lines() -> None:
    for name in FILES:
        assert len((HERE / name).read_text().splitlines()) <= 20


def test_the_rule_leaves_all_three_attackers_out_and_the_mean_does_not_withstand_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(written(tmp_path).parent))
    ruled, mean = (
        run_in_process(parse_experiment(EXPERIMENT, overrides=overrides), tmp_path / name)
        for name, overrides in {"ruled": [], "mean": ["aggregation.lps=mean"]}.items()
    )
    assert ruled.summary.measured["accuracy"].clusters["mean"] > 0.8
    assert mean.summary.measured["accuracy"].clusters["mean"] < 0.2
    factors = rows_of(ruled.folder, "factors.csv")
    assert len(factors) == 6 * 12
    assert {float(row["factor"]) for row in factors if row["attacks"] == "1"} == {0}


def test_the_attack_is_as_long_as_the_longest_known_update_in_blocks_of_any_width() -> None:
    updates = np.float32([[3, 4, 0], [0, 1, 0]])  # mean (1.5, 2.5, 0); the longest has length 5
    attack = Opposing(Opposing.Options(name="opposing", times=2, devices=[0]))
    for cut in (1, 2, 3):
        blocks = [block for block in (updates[:, :cut], updates[:, cut:]) if block.size]
        lie = np.concatenate([*attack.collude(lambda blocks=blocks: iter(blocks), 1, 3)])
        assert lie == pytest.approx(np.array([1.5, 2.5, 0]) * -2 * 5 / 8.5**0.5)
