"""One device that lies about its profile does not make one cluster of all others."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedstrata.errors import PayloadError
from fedstrata.methods import Answers, Candidate, Facts, Moment
from fedstrata.methods.clusters import outlying
from fedstrata.methods.one_shot import PROFILE, RELEVANCE, OneShot
from fedstrata.methods.profiles.relevance import check_profile
from tests.support.methods import method_with

Matrix = NDArray[np.float64]


def alike(*groups: int, within: float = 0.95, across: float = 0.6, liars: int = 0, of_liars: float = 0.03) -> Matrix:
    """R of devices in groups, and after them of liars that are like nobody, not even like each other."""
    owner = np.repeat(np.arange(len(groups)), groups)
    honest = np.where(owner[:, None] == owner[None, :], within, across)
    matrix = np.full((len(honest) + liars,) * 2, of_liars)
    matrix[: len(honest), : len(honest)] = honest
    np.fill_diagonal(matrix, 1.0)
    return matrix


def clusters_of(matrix: Matrix) -> tuple[tuple[tuple[int, ...], ...], str]:
    method = method_with(
        OneShot, {"name": "one_shot"}, Facts(device_count=len(matrix), input_shape=(8,), num_classes=2)
    )
    devices = [Candidate(device_index=index) for index in range(len(matrix))]
    rows = {
        index: {
            "devices": np.array([other for other in range(len(matrix)) if other != index], np.int64),
            "values": np.delete(matrix[index], index),
        }
        for index in range(len(matrix))
    }
    plan = method.plan(Moment.BEFORE, Answers(devices, {RELEVANCE: rows}), None)
    return plan.clusters, plan.rule


@pytest.mark.parametrize("liars", [1, 2, 3])
def test_devices_that_are_like_nobody_leave_the_others_their_groups(liars: int) -> None:
    clusters, rule = clusters_of(alike(4, 3, 2, liars=liars))
    honest = ((0, 1, 2, 3), (4, 5, 6), (7, 8))
    assert clusters == honest + tuple((9 + liar,) for liar in range(liars))
    assert rule.endswith(f"{liars} set apart before")


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
