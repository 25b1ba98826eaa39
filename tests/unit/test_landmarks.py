"""Above a stated number of devices, all are related to landmarks only."""

import numpy as np
import pytest

from fedstrata.errors import ExperimentError
from fedstrata.experiment import parse_experiment
from fedstrata.methods import Candidate, Grouping, make_method
from fedstrata.relevance import landmarks

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


def test_other_devices_join_the_cluster_to_whose_landmarks_they_are_most_relevant_on_average() -> None:
    grouping = Grouping(clusters=((0, 3), (5, 8)), rule="2 as given")
    rows = {
        1: {0: 0.9, 3: 0.1, 5: 0.6, 8: 0.6},  # 0.5 against 0.6
        2: {0: 0.9, 3: 0.5, 5: 0.6, 8: 0.6},  # 0.7 against 0.6
        4: {3: 0.5, 5: 0.4},  # a landmark whose row never came counts for nothing
        6: {0: 0.5, 3: 0.5, 5: 0.5, 8: 0.5},  # among equals the first
    }
    place = make_method(parse_experiment(MANY.replace("70", "2")).method).place
    joined = grouping.joined_by(rows, place)
    assert joined.clusters == ((0, 2, 3, 4, 6), (1, 5, 8))
    assert joined.rule == "2 as given; among 4 landmarks, 4 devices placed by relevance"
    joined.check_covers([Candidate(device_index=i, num_examples=1, true_task=None) for i in (0, 1, 2, 3, 4, 5, 6, 8)])


def test_more_clusters_than_landmarks_are_refused() -> None:
    with pytest.raises(ExperimentError, match=r"method\.clusters is 70, more than method\.landmarks 64"):
        parse_experiment(MANY)
    assert parse_experiment(MANY, overrides=["method.exact_up_to=200"]).method.clusters == 70


def test_a_copy_of_an_experiment_has_a_digest_of_its_own() -> None:
    one = parse_experiment(MANY, overrides=["method.clusters=2"])
    digest = one.digest
    assert one.model_copy(update={"seed": 1}).digest == parse_experiment(one.to_yaml(), seed=1).digest != digest
    assert one.digest == digest


def test_the_draw_covers_every_task_of_a_tenth_of_the_devices() -> None:
    for seed in range(50):
        tasks = np.array(landmarks(1000, seed, exact_up_to=128, count=64)) // 100
        assert set(tasks.tolist()) == set(range(10))
