"""Attacks at a parent: updates of attackers are replaced before the parent's rule combines all updates."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedstrata.attacks import attacks_of
from fedstrata.experiment_file import parse_experiment
from fedstrata.rules import Gathering, Rule, of_parts, of_updates
from fedstrata.rules.registry import gps_rule, lps_rule, make_rule, sends_sums
from tests.support.own_attacks import BASE

UPDATES = {"device-000": [8, 8], "device-001": [1, 0], "device-002": [3, 0], "device-003": [2, 6]}


def ruled(*overrides: str) -> Rule:
    return make_rule(parse_experiment(BASE, overrides=overrides), "lps")


async def combined(rule: Rule, folder: Path, order: Sequence[str] = tuple(UPDATES), examples: int = 5) -> list[float]:
    gathering: Gathering = of_updates(rule, 2, dict.fromkeys(UPDATES, examples), folder)
    for child in order:
        for place, value in enumerate(UPDATES[child]):
            gathering.take(child, place, np.float32([value]), [examples])
        gathering.accept(child, [examples])
    await gathering.settle()
    return gathering.totals[0].mean().tolist()


IPM = "attacks=[{name: inner_product, times: 2, devices: [0]}]"


async def test_the_mean_takes_the_lie_with_the_weight_of_the_liar(tmp_path: Path) -> None:
    # The others' mean is (2, 2), so device 0 sends (−4, −4), and the mean of all is (2, 2) · 3/4 − (4, 4) / 4.
    for order in (tuple(UPDATES), tuple(UPDATES)[::-1]):
        assert await combined(ruled(IPM), tmp_path, order) == [0.5, 0.5]


async def test_another_rule_gets_the_lie_too(tmp_path: Path) -> None:
    # Medians of 1, 3, 2, −4 and of 0, 0, 6, −4.
    assert await combined(ruled(IPM, "aggregation.lps=median"), tmp_path) == [1.5, 0]


async def test_attackers_without_honest_siblings_know_their_own_updates(tmp_path: Path) -> None:
    all_lie = "attacks=[{name: inner_product, times: 1, devices: ['0-9']}]"
    assert await combined(ruled(all_lie), tmp_path) == [-3.5, -3.5]


async def test_a_lie_is_limited_to_what_the_parent_accepts(tmp_path: Path) -> None:
    huge = "attacks=[{name: inner_product, times: 1.0e+9, devices: [0]}]"
    found = await combined(ruled(huge), tmp_path, examples=1 << 12)
    assert found == pytest.approx([-(2**16) / 4, -(2**16) / 4], rel=1e-3)


async def test_outside_its_rounds_an_attack_changes_nothing(tmp_path: Path) -> None:
    rule = ruled("attacks=[{name: alie, z: 1, devices: [0], from_global_round: 2, until_global_round: 2}]")
    before, now, after = [await combined(rule.in_round(number), tmp_path) for number in range(3)]
    assert before == after == [3.5, 3.5]
    assert now != before


def test_lpss_send_means_if_an_attack_is_computed_at_a_parent() -> None:
    local, colluding, lying = (
        parse_experiment(BASE, overrides=["topology={lps: 2}", f"attacks=[{{{attack}}}]"])
        for attack in ("name: scale, devices: [0]", "name: alie, devices: [0]", "name: scale, lps: [1]")
    )
    assert [sends_sums(each, spans=True) for each in (local, colluding, lying)] == [True, False, False]
    assert lps_rule(local).is_sum
    assert lps_rule(lying).is_sum
    assert gps_rule(colluding, are_partial=False).is_sum


async def test_an_lps_lies_to_the_gps(tmp_path: Path) -> None:
    flip = parse_experiment(BASE, overrides=["topology={lps: 2}", "attacks=[{name: sign_flip, times: 3, lps: [1]}]"])
    gathering = of_updates(gps_rule(flip, are_partial=False), 1, {"lps-0": 30, "lps-1": 10}, tmp_path)
    for child, weight in {"lps-0": 30, "lps-1": 10}.items():
        gathering.take(child, 0, np.float32([2]), [weight])
        gathering.accept(child, [weight])
    await gathering.settle()
    assert gathering.totals[0].mean().tolist() == [0]  # (30 · 2 − 10 · 6) / 40


async def test_a_child_that_is_forgotten_is_not_in_the_lie(tmp_path: Path) -> None:
    gathering = of_updates(ruled(IPM), 1, dict.fromkeys(UPDATES, 5), tmp_path)
    for child, values in UPDATES.items():
        gathering.take(child, 0, np.float32(values[:1]), [5])
        gathering.accept(child, [5])
    assert gathering.forget("device-002")
    await gathering.settle()
    assert gathering.weights == [15]
    assert gathering.totals[0].mean().tolist() == [0]  # (1 + 2 − 2 · 1.5) / 3


@pytest.mark.parametrize("attack", ["name: alie, devices: [0]", "name: min_max, devices: [0]", "name: noise, lps: [0]"])
async def test_where_a_method_sends_nothing_there_is_nothing_to_replace(attack: str, tmp_path: Path) -> None:
    attacked = parse_experiment(BASE, overrides=["topology={lps: 2}", f"attacks=[{{{attack}}}]"])
    is_at_lps = "devices" in attack
    rule = lps_rule(attacked) if is_at_lps else gps_rule(attacked, are_partial=False)
    children = [*UPDATES] if is_at_lps else ["lps-0", "lps-1"]
    gathering = of_updates(rule, 0, dict.fromkeys(children, 5), tmp_path)
    for child in children:
        gathering.accept(child, [5])
    await gathering.settle()
    assert len(gathering.totals[0].mean()) == 0


async def test_an_lps_draws_other_noise_in_each_stream(tmp_path: Path) -> None:
    noise = parse_experiment(BASE, overrides=["topology={lps: 2}", "attacks=[{name: noise, lps: [0]}]"])
    rule = gps_rule(noise, are_partial=False).in_round(1)
    gathering = of_parts(rule, [3, 3], {"lps-0": 5}, tmp_path)
    gathering.take("lps-0", 0, np.zeros(6, np.float32), [5])
    gathering.accept("lps-0", [5])
    await gathering.settle()
    first, second = (total.mean().tolist() for total in gathering.totals)
    assert first == pytest.approx(attacks_of(noise)[0].update(np.zeros(3, np.float32), 0, 1).tolist(), rel=1e-3)
    assert not {*first} & {*second}
