"""One-shot clusters of relevances: the dendrogram by hand, landmarks, late devices, and devices that lie."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import AgglomerativeClustering

from fedstrata.errors import ExperimentError, PayloadError, RunStoppedError
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Answers, Arrays, Candidate, Facts, Moment, Plan, make_method
from fedstrata.methods.clustering import closest, clusters_in_dendrogram, cut, merge_heights, outlying
from fedstrata.methods.one_shot import PROFILE, RELEVANCE, OneShot
from fedstrata.methods.profiles.relevance import check_profile, landmarks
from tests.support.methods import candidates, made, method_with

Matrix = NDArray[np.float64]
HALF = 2**-0.5


def blocks(*sizes: int, within: float = 0.9, across: float = 0.2) -> Matrix:
    """R of devices in blocks of these sizes."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    matrix = np.where(owner[:, None] == owner[None, :], within, across)
    np.fill_diagonal(matrix, 1.0)
    return matrix


def row_of(said: Mapping[int, float]) -> Arrays:
    """What a device answers that has these relevances to others."""
    return {"devices": np.array(list(said), np.int64), "values": np.array(list(said.values()))}


def rows(matrix: Matrix, indexes: Sequence[int] | None = None) -> Mapping[int, Arrays]:
    """What devices with these indexes answer: each its row of the matrix, without itself."""
    indexes = range(len(matrix)) if indexes is None else indexes
    return {
        index: row_of({other: matrix[i, j] for j, other in enumerate(indexes) if other != index})
        for i, index in enumerate(indexes)
    }


def one_shot(matrix: Matrix, there: Sequence[Candidate] | None = None, **options: Any) -> Plan:
    """The plan made of rows of a matrix, of as many devices."""
    devices = list(there or candidates(len(matrix)))
    answers = Answers(devices, {RELEVANCE: rows(matrix, [device.device_index for device in devices])})
    return made(OneShot, devices=max(10, len(matrix)), **options).plan(Moment.BEFORE, answers, None)


# --- one-shot -----------------------------------------------------------------------------------------------


def test_devices_of_one_block_form_one_cluster() -> None:
    plan = one_shot(blocks(5, 3, 2), clusters=3)
    assert plan.clusters == ((0, 1, 2, 3, 4), (5, 6, 7), (8, 9))
    assert plan.rule == "3 as given"


def test_average_linkage_joins_by_the_mean_distance() -> None:
    # on a line: 0 and 1 are near (0.1); 2 is 0.3 from 1 but 0.5 from 0, on average 0.4; 3 is 0.35 from 2
    matrix = 1 - np.array([
        [0.0, 0.1, 0.5, 0.9],
        [0.1, 0.0, 0.3, 0.8],
        [0.5, 0.3, 0.0, 0.35],
        [0.9, 0.8, 0.35, 0.0],
    ])  # fmt: skip
    np.testing.assert_allclose(merge_heights(matrix), [0.1, 0.35, (0.5 + 0.9 + 0.3 + 0.8) / 4], atol=1e-12)
    assert one_shot(matrix, clusters=2).clusters == ((0, 1), (2, 3))


def test_neither_the_nearest_nor_the_farthest_pair_decides() -> None:
    # after 1 and 2 (0.1): on average 0 is nearest to them (0.4; 3: 0.525; 0 to 3: 0.5). By the nearest pair it would
    # be 3 (0.15), by the farthest 0 and 3 would join (0.5)
    distance = np.array([
        [0.0, 0.6, 0.2, 0.5],
        [0.6, 0.0, 0.1, 0.15],
        [0.2, 0.1, 0.0, 0.9],
        [0.5, 0.15, 0.9, 0.0],
    ])  # fmt: skip
    assert one_shot(1 - distance, clusters=2).clusters == ((0, 1, 2), (3,))


def test_the_matrix_of_the_plan_is_the_mean_of_both_directions() -> None:
    measured = np.array([[1.0, 0.2, 0.9], [0.4, 1.0, 0.5], [0.1, 0.7, 1.0]])
    plan = one_shot(measured, clusters=1)
    np.testing.assert_allclose(plan.affinity, [[1.0, 0.3, 0.5], [0.3, 1.0, 0.6], [0.5, 0.6, 1.0]], atol=1e-15)
    assert plan.related == (0, 1, 2)


def test_no_plan_depends_on_the_order_of_devices() -> None:
    order = [7, 2, 9, 0, 4, 1, 8, 3, 6, 5]
    shuffled = [candidates(10)[index] for index in order]
    found = one_shot(blocks(5, 3, 2)[np.ix_(order, order)], shuffled, clusters=3)
    expected = one_shot(blocks(5, 3, 2), clusters=3)
    assert found.clusters == expected.clusters
    assert found.related == expected.related
    np.testing.assert_array_equal(found.affinity, expected.affinity)


def test_indexes_with_gaps_stay_what_they_are() -> None:
    there = [candidates(10)[index] for index in (1, 4, 6, 9)]
    assert one_shot(blocks(2, 2), there, clusters=2).clusters == ((1, 4), (6, 9))


def test_one_cluster_or_one_device_needs_no_dendrogram() -> None:
    assert one_shot(blocks(2, 1), clusters=1).clusters == ((0, 1, 2),)
    assert one_shot(np.ones((1, 1)), clusters=3).clusters == ((0,),)
    assert one_shot(np.ones((1, 1))).clusters == ((0,),)


def test_more_clusters_than_devices_that_came_are_not_made() -> None:
    assert one_shot(blocks(1, 1), clusters=3).clusters == ((0,), (1,))


def test_profiles_are_relayed_and_rows_are_not() -> None:
    profile, row = made(OneShot, eigenvectors=3).questions()
    assert (profile.name, profile.relayed, profile.arrays) == (PROFILE, True, {"eigenvectors": ("float32", (3, 4))})
    assert (row.name, row.relayed) == (RELEVANCE, False)
    assert row.arrays == {"devices": ("int64", (10,)), "values": ("float64", (10,))}


@pytest.mark.parametrize(
    ("devices", "values", "message"),
    [
        ([1], [0.5], "the answer has 1 relevances for 1 devices, and lacks 1 devices"),
        ([1, 2], [0.5], "the answer has 1 relevances for 2 devices, and lacks 0 devices"),
        ([1, 2], [0.5, 1.1], r"a relevance outside \[0, 1\]"),
        ([1, 2], [0.5, -0.1], r"a relevance outside \[0, 1\]"),
    ],
)
def test_a_row_that_cannot_be_is_refused(devices: list[int], values: list[float], message: str) -> None:
    method = made(OneShot)
    row = {"devices": np.array(devices, np.int64), "values": np.array(values)}
    with pytest.raises(PayloadError, match=message):
        method.check_answer(method.questions()[1], row, relayed_by=[1, 2])


def test_a_row_is_what_was_heard() -> None:
    method = made(OneShot)
    row = {"devices": np.array([1, 2], np.int64), "values": np.array([0.0, 1.0 + 1e-12])}
    method.check_answer(method.questions()[1], row, relayed_by=[1, 2])
    method.check_answer(method.questions()[0], {"eigenvectors": np.array([[HALF, HALF, 0, 0]], np.float32)}, ())
    with pytest.raises(PayloadError, match="of length one"):
        method.check_answer(method.questions()[0], {"eigenvectors": np.ones((1, 4), np.float32)}, ())


# --- landmarks ---------------------------------------------------------------------------------------------

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
    devices = candidates(9)
    answers = Answers(devices, {"relevance": {index: row_of(said) for index, said in rows.items()}})
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


def test_the_draw_covers_every_task_of_a_tenth_of_the_devices() -> None:
    for seed in range(50):
        tasks = np.array(landmarks(1000, seed, exact_up_to=128, count=64)) // 100
        assert set(tasks.tolist()) == set(range(10))


# --- late devices --------------------------------------------------------------------------------------------


def test_without_any_landmark_there_is_nothing_to_cluster() -> None:
    method = made(OneShot, exact_up_to=4, landmarks=2)
    absent = [device for device in candidates(10) if device.device_index not in method.relays()]
    with pytest.raises(RunStoppedError, match=r"raise method\.landmarks"):
        method.plan(Moment.BEFORE, Answers(absent, {RELEVANCE: {}}), None)


def test_the_sponsors_of_a_cluster_are_those_most_relevant_to_it_on_average() -> None:
    # within 0, 1, 2: the sums of rows are 0.9 + 0.8, 0.9 + 0.3 and 0.8 + 0.3
    matrix = np.array([[1.0, 0.9, 0.8, 0.1], [0.9, 1.0, 0.3, 0.1], [0.8, 0.3, 1.0, 0.1], [0.1, 0.1, 0.1, 1.0]])
    plan = one_shot(matrix, clusters=2)
    assert made(OneShot).sponsors(plan) == ((0,), (3,))
    assert made(OneShot, representatives=2).sponsors(plan) == ((0, 1), (3,))


def test_a_late_device_is_related_to_the_sponsors_alone() -> None:
    plan = one_shot(blocks(3, 2), clusters=2)
    late = {9: row_of({0: 0.1, 3: 0.4})}  # of the first three 0, of the others 3
    answers = Answers(candidates(5), {RELEVANCE: late})
    assert made(OneShot, clusters=2).place(Candidate(device_index=9), answers, plan) == 1


# --- the number of clusters, read off the dendrogram --------------------------------------------------------


@pytest.mark.parametrize(
    ("heights", "clusters"),
    [
        ([0.1, 0.2, 0.7, 0.8], 3),  # gaps from the top: 0.1, 0.5 …: cut between 0.2 and 0.7, two merges done of 5
        ([0.1, 0.2, 0.3, 0.9], 2),
        ([0.05, 0.1, 0.15, 0.19], 1),  # even the last merge is below 0.2
        ([0.7, 0.75, 0.8, 0.85], 5),  # the widest gap is below the first merge: nobody belongs together
        ([0.25], 2),
        ([0.19], 1),
        ([0.2, 0.4], 2),  # equal gaps of 0.2: the fewer clusters
        ([], 1),
    ],
)
def test_the_widest_gap_between_merges_sets_the_number(heights: list[float], clusters: int) -> None:
    count, rule = clusters_in_dendrogram(np.array(heights))
    assert count == clusters
    assert rule.startswith("auto: ")


def test_auto_finds_blocks_and_says_how() -> None:
    plan = one_shot(blocks(5, 3, 2))
    assert [len(cluster) for cluster in plan.clusters] == [5, 3, 2]
    assert plan.rule == "auto: 3, at the dendrogram's widest gap (0.700)"


def test_auto_leaves_devices_of_one_task_together() -> None:
    assert one_shot(blocks(6)).clusters == ((0, 1, 2, 3, 4, 5),)


# --- devices that are like nobody ---------------------------------------------------------------------------


def alike(*groups: int, within: float = 0.95, across: float = 0.6, liars: int = 0, of_liars: float = 0.03) -> Matrix:
    """R of devices in groups, and after them of liars that are like nobody, not even like each other."""
    owner = np.repeat(np.arange(len(groups)), groups)
    honest = np.where(owner[:, None] == owner[None, :], within, across)
    matrix = np.full((len(honest) + liars,) * 2, of_liars)
    matrix[: len(honest), : len(honest)] = honest
    np.fill_diagonal(matrix, 1.0)
    return matrix


@pytest.mark.parametrize("liars", [1, 2, 3])
def test_devices_that_are_like_nobody_leave_the_others_their_groups(liars: int) -> None:
    plan = one_shot(alike(4, 3, 2, liars=liars))
    honest = ((0, 1, 2, 3), (4, 5, 6), (7, 8))
    assert plan.clusters == honest + tuple((9 + liar,) for liar in range(liars))
    assert plan.rule.endswith(f"{liars} set apart before")


@pytest.mark.parametrize(
    "honest",
    [
        alike(4, 3, 2),
        alike(9, 1),
        alike(9, 1, across=0.1),
        alike(5, 1, 1),
        alike(1, 1),
        alike(6, within=0.7),  # one loose group
        alike(3, 1, within=0.85),
    ],
)
def test_of_honest_devices_none_is_set_apart(honest: Matrix) -> None:
    assert outlying(honest) == []


def test_one_device_is_set_apart_where_the_others_are_one_loose_group_only_if_it_has_a_gap_of_its_own() -> None:
    loose = alike(3, 3, within=0.9, across=0.75, liars=1)  # the groups are 0.15 apart: no gap
    assert outlying(loose) == []
    assert outlying(alike(3, 3, within=0.9, across=0.65, liars=1)) == [6]


def profile(rows: list[list[float]]) -> NDArray[np.float32]:
    return np.array(rows, np.float32)


def checked(vectors: NDArray[np.float32], num_examples: int) -> None:
    """As the GPS checks the profile of a device that has enrolled with so many examples of three values."""
    method = method_with(OneShot, {"name": "one_shot", "eigenvectors": 2}, Facts(device_count=3, input_shape=(3,)))
    question = next(each for each in method.questions() if each.name == PROFILE)
    whose = Candidate(device_index=0, num_examples=num_examples)
    method.check_answer_of(whose, question, {"eigenvectors": vectors}, ())


def test_a_profile_has_as_many_rows_as_the_device_has_directions() -> None:
    one, two = profile([[0, 1, 0]]), profile([[0, 1, 0], [0.6, 0, 0.8]])
    checked(two, num_examples=10)
    checked(one, num_examples=1)
    for vectors, num_examples in ((one, 10), (two, 1)):
        with pytest.raises(PayloadError, match="eigenvectors; expected"):
            checked(vectors, num_examples)


def test_rows_that_are_not_orthogonal_are_no_profile() -> None:
    with pytest.raises(PayloadError, match=r"product 0\.6"):
        check_profile(profile([[0, 1, 0], [0.8, 0.6, 0]]), 2)
    constant = profile([[3**-0.5] * 3] * 2)
    with pytest.raises(PayloadError, match="orthogonal"):
        check_profile(constant, 2)


def test_a_wide_profile_is_orthonormal_up_to_its_rounding() -> None:
    vectors = np.linalg.svd(np.random.default_rng(0).random((60, 784)), full_matrices=False)[2][:40]
    check_profile(vectors.astype(np.float32), 40)


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
@pytest.mark.parametrize("levels", [3, 1_000_000])  # many equal distances, and none
def test_a_cut_numbers_clusters_as_scikit_learn_does(linkage: str, levels: int) -> None:
    rng = np.random.default_rng(levels)
    for points in (2, 3, 7, 12):
        distances = rng.integers(1, levels + 1, (points, points)) / levels
        distances = np.triu(distances, 1) + np.triu(distances, 1).T
        for count in range(2, points + 1):
            theirs = AgglomerativeClustering(n_clusters=count, metric="precomputed", linkage=linkage)
            assert list(cut(distances, count, linkage)) == theirs.fit_predict(distances).tolist()
    assert cut(distances, 1, linkage) == [0] * points
