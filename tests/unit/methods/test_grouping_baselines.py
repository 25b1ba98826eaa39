"""Random and oracle clusters, and PACFL's principal angles against SciPy's."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import subspace_angles

from fedstrata.errors import ExperimentError, PayloadError
from fedstrata.methods import Answers, Candidate, Moment, Plan, Reach
from fedstrata.methods.oracle import Oracle
from fedstrata.methods.pacfl import SUBSPACE, Pacfl, affinity, angle_between, leading_vectors
from fedstrata.methods.random_clusters import RandomClusters
from tests.support.methods import candidates, made

HALF = 2**-0.5


# --- random and oracle --------------------------------------------------------------------------------------


def random_plan(devices: list[Candidate], seed: int = 0, **options: Any) -> Plan:
    method = made(RandomClusters, devices=40, groups=2, seed=seed, **options)
    return method.plan(Moment.BEFORE, Answers(devices), None)


def test_random_clusters_have_the_sizes_of_the_true_tasks() -> None:
    plans = [random_plan(candidates(10, "aaaaabbbcc"), seed) for seed in range(20)]
    for plan in plans:
        assert sorted(len(cluster) for cluster in plan.clusters) == [2, 3, 5]
        assert sorted(index for cluster in plan.clusters for index in cluster) == list(range(10))
    assert len({plan.clusters for plan in plans}) > 10


def test_random_clusters_are_the_same_for_the_same_seed_in_whatever_order_devices_are_given() -> None:
    one, other = (random_plan(candidates(9)[::step], seed=4, clusters=3) for step in (1, -1))
    assert one == other


@given(devices=st.integers(1, 40), clusters=st.integers(1, 12), seed=st.integers(0, 2**63 - 1))
def test_without_tasks_random_clusters_are_of_near_equal_size(devices: int, clusters: int, seed: int) -> None:
    plan = random_plan(candidates(devices), seed, clusters=clusters)
    sizes = [len(cluster) for cluster in plan.clusters]
    assert len(sizes) == min(clusters, devices)
    assert max(sizes) - min(sizes) <= 1
    plan.check_covers(candidates(devices))


def test_a_number_of_random_clusters_other_than_that_of_the_tasks_wins() -> None:
    plan = random_plan(candidates(5, "aabbc"), clusters=2)
    assert sorted(len(cluster) for cluster in plan.clusters) == [2, 3]


def test_oracle_clusters_are_the_true_tasks() -> None:
    method = made(Oracle, groups=3)
    assert method.plan(Moment.BEFORE, Answers(candidates(5, "babac")), None).clusters == ((0, 2), (1, 3), (4,))
    assert method.clusters_known == 3


def test_oracle_needs_the_true_tasks() -> None:
    with pytest.raises(ExperimentError, match="the partition has no true clusters"):
        made(Oracle, groups=2).plan(Moment.BEFORE, Answers(candidates(2)), None)


# --- principal angles ---------------------------------------------------------------------------------------


def orthonormal(seed: int, rows: int, size: int) -> NDArray[np.float64]:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, rows)))[0].T


@pytest.mark.parametrize("shapes", [(3, 3), (2, 5), (5, 1)])
def test_a_principal_angle_is_that_between_the_subspaces(shapes: tuple[int, int]) -> None:
    one, other = orthonormal(1, shapes[0], 30), orthonormal(2, shapes[1], 30)
    # by definition: the arc cosine of the largest singular value of the product of orthonormal bases
    largest = np.linalg.svd(one @ other.T, compute_uv=False)[0]
    assert angle_between(one, other, "principal") == pytest.approx(np.arccos(largest), abs=1e-12)


def test_a_principal_angle_does_not_depend_on_the_basis_and_the_others_do() -> None:
    one, other, turned = orthonormal(1, 3, 30), orthonormal(2, 3, 30), orthonormal(3, 3, 3)
    for angle, depends in (("principal", False), ("smallest", True), ("sum", True)):
        change = angle_between(turned @ one, other, angle) - angle_between(one, other, angle)
        assert (abs(change) > 1e-3) == depends


def test_of_lines_all_three_angles_are_the_one_that_scipy_gives() -> None:
    one, other = orthonormal(1, 1, 30), orthonormal(2, 1, 30)
    (expected,) = subspace_angles(one.T, other.T)
    for angle in ("principal", "smallest", "sum"):
        assert angle_between(one, other, angle) == pytest.approx(expected, abs=1e-12)


def test_angles_by_hand() -> None:
    # the axes x, y against x, (y + z)/√2: between vectors 0° and 90° or 45°; both planes hold x
    one = np.array([[1.0, 0, 0], [0, 1, 0]])
    other = np.array([[1.0, 0, 0], [0, HALF, HALF]])
    assert angle_between(one, other, "principal") == pytest.approx(0.0)
    assert angle_between(one, other, "smallest") == pytest.approx(0.0)
    assert angle_between(one, other, "sum") == pytest.approx(np.pi / 8)  # the mean of 0° and 45°
    # the other way round no vector meets its like: 90° and 90°, but the smallest are as before
    assert angle_between(one, other[::-1], "smallest") == pytest.approx(0.0)
    assert angle_between(one, other[::-1], "sum") == pytest.approx((np.pi / 2 + np.pi / 2) / 2)


def test_the_sign_of_a_vector_does_not_matter() -> None:
    one, other = orthonormal(1, 3, 30), orthonormal(2, 3, 30)
    for angle in ("principal", "smallest", "sum"):
        assert angle_between(-one, other, angle) == pytest.approx(angle_between(one, other, angle))


def test_affinity_is_one_minus_the_share_of_a_right_angle() -> None:
    x, between, y = np.array([[1.0, 0]]), np.array([[HALF, HALF]]), np.array([[0.0, 1]])
    expected = [[1, 0.5, 0], [0.5, 1, 0.5], [0, 0.5, 1]]
    for angle in ("principal", "smallest", "sum"):
        np.testing.assert_allclose(affinity([x, between, y], angle), expected, atol=1e-7)


# --- PACFL --------------------------------------------------------------------------------------------------


def test_vectors_are_the_leading_right_singular_ones_of_all_rows_or_label_by_label() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((12, 5)) * [5, 4, 3, 2, 1]
    labels = np.array([3, 1] * 6)
    for rows, found in (
        (features, leading_vectors(features, None, 2)),
        (features[labels == 1], leading_vectors(features, labels, 2)[:2]),
        (features[labels == 3], leading_vectors(features, labels, 2)[2:]),
    ):
        leading = np.linalg.eigh(rows.T @ rows)[1][:, ::-1][:, :2].T  # by the Gram matrix
        np.testing.assert_allclose(np.abs(found @ leading.T), np.eye(2), atol=1e-10)


def test_a_label_with_fewer_examples_than_vectors_gives_as_many_as_it_has() -> None:
    features, labels = np.eye(4), np.array([0, 0, 0, 1])
    assert leading_vectors(features, labels, 3).shape == (4, 4)


def pacfl(subspaces: dict[int, NDArray[np.float64]], **options: Any) -> Plan:
    given = {index: {"vectors": vectors.astype(np.float32)} for index, vectors in subspaces.items()}
    answers = Answers([candidates(10)[index] for index in subspaces], {SUBSPACE: given})
    return made(Pacfl, **options).plan(Moment.BEFORE, answers, None)


@pytest.mark.parametrize("angle", ["principal", "smallest", "sum"])
def test_devices_whose_data_lie_in_the_same_subspace_form_one_cluster(angle: str) -> None:
    rng = np.random.default_rng(1)
    low, high = np.eye(8)[:2], np.eye(8)[4:6]
    subspaces = {
        index: np.linalg.qr((base + 0.1 * rng.standard_normal(base.shape)).T)[0].T
        for index, base in enumerate([low, high, low, high, low])
    }
    plan = pacfl(subspaces, angle=angle, by_label=False, clusters="auto")
    assert plan.clusters == ((0, 2, 4), (1, 3))
    assert plan.related == (0, 1, 2, 3, 4)
    backwards = pacfl(dict(reversed(subspaces.items())), angle=angle, by_label=False, clusters="auto")
    assert backwards.clusters == plan.clusters
    np.testing.assert_array_equal(backwards.affinity, plan.affinity)


def test_every_layer_is_the_clusters_own_and_vectors_go_to_the_gps_alone() -> None:
    method = made(Pacfl, vectors=3, clusters=2)
    (question,) = method.questions()
    assert not question.relayed
    assert question.arrays == {"vectors": ("float32", (6, 4))}  # 3 of each of 2 labels
    assert made(Pacfl, vectors=3, by_label=False).questions()[0].arrays == {"vectors": ("float32", (3, 4))}
    with pytest.raises(PayloadError, match="of length one"):
        method.check_answer(question, {"vectors": np.ones((1, 4), np.float32)}, ())


def test_channels_say_who_shares_what() -> None:
    from fedstrata.datasets import DatasetInfo
    from fedstrata.experiment import ModelSettings
    from fedstrata.models import build_model

    model = build_model(ModelSettings(hidden=(3,)), DatasetInfo(input_shape=(4,), num_classes=2))
    (channel,) = made(Pacfl).channels(model)
    assert (channel.reach, channel.tensors.names) == (Reach.CLUSTER, model.layout.names)
    shared, head = made(Oracle, groups=2).channels(model)
    assert (shared.reach, shared.tensors.names) == (Reach.EVERYWHERE, ("fc1.weight", "fc1.bias"))
    assert (head.reach, head.tensors.names) == (Reach.CLUSTER, ("fc2.weight", "fc2.bias"))
