"""Other measures of relevance: angles of the same place, and the energy that two subspaces share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import subspace_angles

from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods.profiles.relevance import Measure, Spectrum, relevance, spectrum_of


def rows(*vectors: tuple[float, ...]) -> NDArray[np.float32]:
    return np.array(vectors, np.float32)


def diagonal(*eigenvalues: float) -> Spectrum:
    """A device whose directions are the axes."""
    return Spectrum(eigenvalues=np.array(eigenvalues), eigenvectors=np.eye(len(eigenvalues)))


def test_angles_are_compared_place_by_place() -> None:
    # the same axis, and one at 60° of 90°: angles 0 and 2/3, on average 1/3
    profile = rows((1, 0, 0), (0, 0.5, 0.75**0.5))
    assert relevance(diagonal(4, 2, 1), profile, k=2, measure="angles") == pytest.approx(2 / 3, abs=1e-6)


def test_directions_that_are_swapped_are_at_right_angles() -> None:
    assert relevance(diagonal(4, 1), rows((0, 1), (1, 0)), k=2, measure="angles") == 0.0


def test_the_sign_of_a_direction_does_not_matter() -> None:
    assert relevance(diagonal(4, 1), rows((-1, 0), (0, -1)), k=2, measure="angles") == 1.0


def test_swapped_directions_share_all_of_their_energy() -> None:
    # the paper's relevance of axes 4 and 1 swapped is 1/4; the subspaces are the same: √(1/4 · 1)
    assert relevance(diagonal(4, 1), rows((0, 1), (1, 0)), k=2, measure="subspace") == pytest.approx(0.5)


def test_half_of_the_energy_is_shared_where_one_of_two_directions_is() -> None:
    # axes 1 and 3 against axes 1 and 2 of eigenvalues 4, 1, ¼: ratios 1 and ¼, so ½; energy ½
    profile = rows((1, 0, 0), (0, 0, 1))
    assert relevance(diagonal(4, 1, 0.25), profile, k=2, measure="subspace") == pytest.approx(0.5)


def test_energy_is_that_of_the_principal_angles() -> None:
    rng = np.random.default_rng(1)
    one, other = (spectrum_of(rng.normal(size=(30, 12))) for _ in range(2))
    geometric, found = (relevance(one, other.profile(4), k=4, measure=m) for m in ("geometric", "subspace"))
    angles = subspace_angles(one.eigenvectors[:4].T, other.eigenvectors[:4].T)
    assert found**2 == pytest.approx(geometric * np.mean(np.cos(angles) ** 2), rel=1e-5)


def test_negligible_directions_of_the_measuring_device_count_for_no_measure() -> None:
    spectrum, profile = diagonal(1, 0.5, 1e-12), rows((1, 0, 0), (0, 1, 0), (0, 0, 1))
    lost = rows((1, 0, 0), (0, 1, 0), (0, 0.5, 0.75**0.5))
    for measure in ("angles", "subspace"):
        found = [relevance(spectrum, each, k=3, measure=measure) for each in (profile, lost)]  # type: ignore[arg-type]
        assert found == [1.0, 1.0]


@given(
    seed=st.integers(0, 2**32),
    examples=st.integers(1, 9),
    k=st.integers(1, 6),
    measure=st.sampled_from(["geometric", "angles", "subspace"]),
)
def test_every_measure_gives_a_number_from_0_to_1_and_one_to_itself(
    seed: int, examples: int, k: int, measure: Measure
) -> None:
    rng = np.random.default_rng(seed)
    one, other = spectrum_of(rng.normal(size=(examples, 5))), spectrum_of(rng.normal(size=(6, 5)))
    assert 0.0 <= relevance(one, other.profile(k), k=k, measure=measure) <= 1.0
    assert relevance(one, one.profile(k), k=k, measure=measure) == pytest.approx(1.0, abs=1e-3)


def test_a_measure_that_there_is_not_is_refused() -> None:
    text = (
        "{name: x, partition: {kind: iid, devices: 2, examples_per_device: 5}, method: {name: one_shot, measure: dot}}"
    )
    with pytest.raises(ExperimentError, match=r"method\.measure: must be 'geometric', 'angles' or 'subspace'"):
        parse_experiment(text)
