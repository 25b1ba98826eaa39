"""Above a stated number of devices, all are related to landmarks only."""

import numpy as np
import pytest

from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Answers, Candidate, Facts, Moment, make_method
from fedstrata.methods.clusters import closest
from fedstrata.methods.one_shot import OneShot
from fedstrata.methods.profiles.relevance import landmarks
from tests.support.methods import method_with

MANY = """
name: many
data: {name: digits}
partition: {kind: iid, devices: 200, examples_per_device: 5}
method: {name: one_shot, clusters: 70}
"""


def test_up_to_the_stated_number_all_devices_are_landmarks() -> None:
    assert landmarks(128, 0, exact_up_to=128, count=64) == list(range(128))


def test_above_it_landmarks_are_drawn_by_the_seed_and_by_nothing_else() -> None:
    drawn = landmarks(1000, 7, exact_up_to=128, count=64)
    assert len(set(drawn)) == 64
    assert drawn == sorted(drawn)
    assert all(0 <= index < 1000 for index in drawn)
    assert drawn == landmarks(1000, 7, exact_up_to=128, count=64)
    assert drawn != landmarks(1000, 8, exact_up_to=128, count=64)


def row(said: dict[int, float]) -> dict[str, np.ndarray]:
    return {"devices": np.int64(list(said)), "values": np.float64(list(said.values()))}


def test_a_device_joins_the_cluster_to_whose_landmarks_it_is_most_relevant_on_average() -> None:
    groups = ((0, 3), (5, 8))
    assert closest({0: 0.9, 3: 0.1, 5: 0.6, 8: 0.6}, groups) == 1  # 0.5 against 0.6
    assert closest({0: 0.9, 3: 0.5, 5: 0.6, 8: 0.6}, groups) == 0  # 0.7 against 0.6
    assert closest({3: 0.5, 5: 0.4}, groups) == 0  # a landmark whose row never came counts for nothing
    assert closest({0: 0.5, 3: 0.5, 5: 0.5, 8: 0.5}, groups) == 0  # among equals the first


def test_landmarks_are_clustered_and_the_others_join_them() -> None:
    options = {"name": "one_shot", "clusters": 2, "exact_up_to": 1, "landmarks": 4}
    method = method_with(OneShot, options, Facts(device_count=9, input_shape=(1, 2, 2)))
    known = list(method.relays())
    assert len(known) == 4
    one, other = known[:2], known[2:]
    rows = {index: {mate: 0.9 if (index in one) == (mate in one) else 0.2 for mate in known} for index in known}
    others = [index for index in range(9) if index not in known]
    rows |= {index: {mate: 0.8 if (mate in one) == (index % 2 == 0) else 0.3 for mate in known} for index in others}
    devices = [Candidate(device_index=index) for index in range(9)]
    answers = Answers(devices, {"relevance": {index: row(said) for index, said in rows.items()}})
    plan = method.plan(Moment.BEFORE, answers, None)
    joined = [[*group, *(i for i in others if (i % 2 == 0) == (group is one))] for group in (one, other)]
    assert plan.clusters == tuple(sorted(tuple(sorted(group)) for group in joined))
    assert plan.rule == "2 as given; among 4 landmarks, 5 devices placed by relevance"
    assert plan.related == tuple(known)
    assert plan.affinity is not None
    assert plan.affinity.shape == (4, 4)
    plan.check_covers(devices)


def test_only_landmarks_are_relayed() -> None:
    experiment = parse_experiment(MANY, overrides=["method.clusters=2"])
    assert list(make_method(experiment).relays()) == landmarks(200, 0, exact_up_to=128, count=64)


def test_more_clusters_than_landmarks_are_refused() -> None:
    with pytest.raises(ExperimentError, match=r"method\.clusters is 70, more than method\.landmarks, 64"):
        parse_experiment(MANY)
    kept = parse_experiment(MANY, overrides=["method.exact_up_to=200"])
    assert kept.method.model_dump()["clusters"] == 70


def test_a_copy_of_an_experiment_has_a_digest_of_its_own() -> None:
    one = parse_experiment(MANY, overrides=["method.clusters=2"])
    digest = one.digest
    assert one.model_copy(update={"seed": 1}).digest == parse_experiment(one.to_yaml(), seed=1).digest != digest
    assert one.digest == digest


def test_the_draw_covers_every_task_of_a_tenth_of_the_devices() -> None:
    for seed in range(50):
        tasks = np.array(landmarks(1000, seed, exact_up_to=128, count=64)) // 100
        assert set(tasks.tolist()) == set(range(10))
