"""Who takes part in an LPS round: drawn by address, whoever draws and however devices are split."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.datasets import dataset_info
from fedstrata.errors import ExperimentError
from fedstrata.experiment.sections import MAX_DEVICES
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import NAMES
from fedstrata.methods.cohort import COHORT, cohort, cohort_of_file
from fedstrata.models import build_model
from tests.support.splits import SMALL


@pytest.mark.parametrize(
    ("members", "participation", "expected"),
    [(10, None, 10), (10, 1.0, 10), (10, 1, 1), (10, 3, 3), (10, 99, 10), (10, 0.3, 3), (10, 0.31, 4), (10, 1e-9, 1),
     (30, 0.1, 3), (100, 0.07, 7), (1, 0.5, 1), (0, 0.5, 0), (0, 3, 0)],
)  # fmt: skip
def test_a_share_is_rounded_up_and_a_number_is_at_most_all(
    members: int, participation: int | float | None, expected: int
) -> None:
    assert len(cohort(range(members), participation, seed=1, lps_round=0)) == expected


@given(st.one_of(st.integers(0, 9), st.integers(0, 2**63 - 1)), st.integers(0, 10**6))
def test_the_devices_with_the_smallest_draws_take_part(seed: int, lps_round: int) -> None:
    members = [9, 4, 7, 1, 30]
    draws = {device: np.random.default_rng([seed, COHORT, lps_round, device]).random() for device in members}
    assert cohort(members, 2, seed, lps_round) == sorted(sorted(members, key=draws.__getitem__)[:2])


def test_every_seed_and_round_has_a_cohort_of_its_own_and_devices_take_part_equally_often() -> None:
    by_round = [tuple(cohort(range(20), 5, seed=1, lps_round=lps_round)) for lps_round in range(400)]
    assert len(set(by_round)) > 390
    assert by_round[0] != tuple(cohort(range(20), 5, seed=2, lps_round=0))
    times = np.bincount([device for asked in by_round for device in asked], minlength=20)
    assert times.sum() == 2000
    assert abs(times - 100).max() < 40  # a standard deviation is 8.7


@given(st.sets(st.integers(0, 200), min_size=2), st.integers(1, 30), st.randoms(use_true_random=False))
def test_who_is_asked_does_not_depend_on_order_nor_on_how_devices_are_split_but_for_the_numbers(
    members: set[int], count: int, random: "np.random.Generator"
) -> None:
    whole = cohort(sorted(members), count, seed=1, lps_round=2)
    shuffled = sorted(members)
    random.shuffle(shuffled)  # type: ignore[arg-type]
    assert cohort(shuffled, count, seed=1, lps_round=2) == whole == sorted(whole)
    halves = shuffled[::2], shuffled[1::2]
    chosen = [set(whole) & set(half) for half in halves]
    together = [cohort(half, len(own), seed=1, lps_round=2) for half, own in zip(halves, chosen, strict=True)]
    assert sorted(together[0] + together[1]) == whole


def test_the_address_is_no_devices() -> None:
    assert COHORT > MAX_DEVICES


def test_the_cohorts_of_the_file_are_those_that_the_servers_draw() -> None:
    """Device 4 joins in global round 3. If each LPS averages, it has a cohort of its own."""
    text = """
name: a
partition: {kind: iid, devices: 6, examples_per_device: 10}
method: fedavg
topology: {lps: 2, devices: [[0, 1, 4], [2, 3, 5]]}
newcomers: {devices: [4], from_global_round: 3}
training: {participation: 2, lps_rounds_per_global_round: KAPPA}
"""
    together, apart = (parse_experiment(text.replace("KAPPA", kappa), seed=7) for kappa in ("1", "2"))
    assert cohort_of_file(together, 1) == sorted([*cohort([0, 1], 2, 7, 1), *cohort([2, 3, 5], 2, 7, 1)])
    assert cohort_of_file(together, 2) == sorted([*cohort([0, 1, 4], 2, 7, 2), *cohort([2, 3, 5], 2, 7, 2)])
    assert cohort_of_file(apart, 3) == sorted([*cohort([0, 1], 2, 7, 3), *cohort([2, 3, 5], 2, 7, 3)])
    assert cohort_of_file(apart, 4) == sorted([*cohort([0, 1, 4], 2, 7, 4), *cohort([2, 3, 5], 2, 7, 4)])
    everybody = together.model_copy(update={"training": together.training.model_copy(update={"participation": None})})
    assert cohort_of_file(everybody, 1) == []


def test_all_methods_of_a_seed_ask_the_same_devices_and_begin_with_the_same_weights() -> None:
    asked, begun = {}, {}
    for name in NAMES:
        method = {"name": name, **({"clusters": 2} if name == "random" else {})}
        try:
            experiment = parse_experiment(SMALL, overrides=[f"method={json.dumps(method)}", "training.participation=2"])
        except ExperimentError:  # the method refuses participation, or needs other keys
            continue
        asked[name] = tuple(map(str, (cohort_of_file(experiment, number) for number in range(5))))
        begun[name] = build_model(experiment.model, dataset_info(experiment.data)).initial(experiment.seed).tobytes()
    assert {"fedavg", "fedprox", "scaffold", "fedadam", "ditto"} <= asked.keys()
    assert len(set(asked.values())) == len(set(begun.values())) == 1
