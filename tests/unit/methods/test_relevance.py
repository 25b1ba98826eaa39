"""Relevance: Eq. 1 to 5 against an eigendecomposition, cases by hand, and the other measures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import subspace_angles

from fedstrata.errors import ExperimentError, PayloadError
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods.profiles.relevance import (
    NEGLIGIBLE_RATIO,
    Matrix,
    Measure,
    Spectrum,
    check_eigenvectors,
    relevance,
    relevance_matrix,
    spectrum_of,
)


def data(seed: int, examples: int, features: int, rank: int | None = None) -> Matrix:
    """Features with a spectrum that falls off, of the given rank."""
    rng = np.random.default_rng(seed)
    depth = rank or features
    mixing = rng.standard_normal((depth, features)) * 0.7 ** np.arange(depth)[:, None]
    return np.asarray(rng.standard_normal((examples, depth)) @ mixing)


def by_eigendecomposition(own: Matrix, other: Matrix, k: int) -> float:
    """r(i, j) as the paper writes it: G formed, eigh, a plain product. For spectra without negligible values."""
    gram, gram_other = own.T @ own / len(own), other.T @ other / len(other)
    values = np.linalg.eigh(gram)[0][::-1][:k]
    vectors = np.linalg.eigh(gram_other)[1][:, ::-1][:, :k]
    product = 1.0
    for value, vector in zip(values, vectors.T, strict=True):
        estimated = np.linalg.norm(gram @ vector)  # Eq. 2
        product *= min(value, estimated) / max(value, estimated)  # Eq. 3
    return float(product ** (1 / k))  # Eq. 4


def eigenvectors(*rows: tuple[float, ...]) -> NDArray[np.float32]:
    return np.array(rows, np.float32)


def diagonal(*eigenvalues: float) -> Spectrum:
    """The spectrum of a device whose eigenvectors are the axes."""
    return Spectrum(eigenvalues=np.array(eigenvalues), eigenvectors=np.eye(len(eigenvalues)))


# --- against an independent computation ---------------------------------------------------------------------


@pytest.mark.parametrize(("examples", "other_examples", "features"), [(50, 40, 6), (8, 30, 12), (200, 200, 30)])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_relevance_is_that_of_an_eigendecomposition(examples: int, other_examples: int, features: int, k: int) -> None:
    own, other = data(1, examples, features), data(2, other_examples, features)
    got = relevance(spectrum_of(own), spectrum_of(other).profile(k), k=k)
    assert got == pytest.approx(by_eigendecomposition(own, other, k), abs=1e-5)


def test_the_spectrum_is_that_of_the_gram_matrix() -> None:
    features = data(3, 20, 7)
    spectrum = spectrum_of(features)
    gram = features.T @ features / 20
    np.testing.assert_allclose(spectrum.eigenvalues, np.linalg.eigvalsh(gram)[::-1], atol=1e-12)
    np.testing.assert_allclose(
        spectrum.eigenvectors.T @ np.diag(spectrum.eigenvalues) @ spectrum.eigenvectors, gram, atol=1e-12
    )


def test_more_features_than_examples_give_as_many_directions_as_examples() -> None:
    spectrum = spectrum_of(data(4, 3, 10))
    assert spectrum.eigenvectors.shape == (3, 10)
    assert spectrum.profile(5).shape == (3, 10)
    assert spectrum.profile(5).dtype == np.float32


# --- by hand ------------------------------------------------------------------------------------------------


def test_a_device_is_wholly_relevant_to_itself() -> None:
    spectrum = spectrum_of(data(5, 30, 8))
    assert relevance(spectrum, spectrum.profile(5), k=5) == pytest.approx(1.0, abs=1e-6)


def test_the_sign_of_an_eigenvector_does_not_matter() -> None:
    assert relevance(diagonal(4, 1), eigenvectors((-1, 0), (0, -1)), k=2) == 1.0


def test_directions_that_are_swapped() -> None:
    # λ = 4, 1; ‖G v‖ = 1, 4; ρ = 1/4, 1/4; the geometric mean is 1/4
    assert relevance(diagonal(4, 1), eigenvectors((0, 1), (1, 0)), k=2) == pytest.approx(0.25)


def test_a_direction_half_way_between() -> None:
    # v = (1, 1)/√2: G v = (4, 1)/√2, of length √(17/2); ρ = √8.5 / 4
    half = 2**-0.5
    assert relevance(diagonal(4, 1), eigenvectors((half, half)), k=1) == pytest.approx(8.5**0.5 / 4)


def test_the_geometric_mean_is_over_the_directions_compared() -> None:
    # ρ = 1 and 1/4: √(1/4)
    assert relevance(diagonal(4, 1, 0.25), eigenvectors((1, 0, 0), (0, 0, 1)), k=2) == pytest.approx(0.5)


def test_a_profile_may_be_shorter_than_k() -> None:
    assert relevance(diagonal(4, 1), eigenvectors((1, 0)), k=2) == 1.0


def test_data_that_does_not_vary_in_a_direction_has_no_relevance_to_it() -> None:
    assert relevance(diagonal(4, 1, 0), eigenvectors((0, 0, 1)), k=1) == 0.0


# --- rank-deficient data ------------------------------------------------------------------------------------


def test_negligible_directions_of_the_measuring_device_are_left_out() -> None:
    # the third eigenvalue is rounding; with it the product would be about 10⁻⁴
    rounding = NEGLIGIBLE_RATIO / 1000
    profile = eigenvectors((1, 0, 0), (0, 1, 0), (0, 0.6, 0.8))
    assert relevance(diagonal(1, 0.5, rounding), profile, k=3) == 1.0


def test_a_direction_just_above_negligible_counts() -> None:
    assert relevance(diagonal(1, 2 * NEGLIGIBLE_RATIO), eigenvectors((0, 1), (1, 0)), k=2) < 1e-4


def test_devices_of_lower_rank_than_k_are_compared_in_what_they_have() -> None:
    own = data(6, 40, 12, rank=3)
    spectrum = spectrum_of(own)
    assert relevance(spectrum, spectrum.profile(5), k=5) == pytest.approx(1.0, abs=1e-5)


def test_data_of_zeros_has_no_relevance_to_anything() -> None:
    spectrum = spectrum_of(np.zeros((4, 3)))
    assert relevance(spectrum, eigenvectors((1, 0, 0)), k=1) == 0.0


# --- R ------------------------------------------------------------------------------------------------------


def test_the_matrix_is_the_mean_of_both_directions_with_ones_on_the_diagonal() -> None:
    rows = np.array([[0.3, 0.2, 1.0], [0.4, 0.0, 0.5], [0.0, 0.7, 0.9]])
    expected = [[1.0, 0.3, 0.5], [0.3, 1.0, 0.6], [0.5, 0.6, 1.0]]
    np.testing.assert_allclose(relevance_matrix(rows), expected, atol=1e-15)


def test_making_the_matrix_leaves_the_rows_alone() -> None:
    rows = np.array([[0.5, 0.2], [0.4, 0.5]])
    relevance_matrix(rows)
    assert rows.tolist() == [[0.5, 0.2], [0.4, 0.5]]


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [[(1, 1)], [(1, 0), (0, 0)], [(np.nan, 1)], [(np.inf, 0)], []])
def test_rows_that_are_no_eigenvectors_are_refused(rows: list[tuple[float, float]]) -> None:
    with np.errstate(over="ignore"), pytest.raises(PayloadError, match="eigenvector"):
        check_eigenvectors(np.array(rows, np.float32).reshape(-1, 2))


def test_eigenvectors_are_taken_as_they_travel() -> None:
    check_eigenvectors(spectrum_of(data(7, 30, 8)).profile(5))


# --- other measures -----------------------------------------------------------------------------------------


def test_angles_are_compared_place_by_place() -> None:
    # the same axis, and one at 60° of 90°: angles 0 and 2/3, on average 1/3
    profile = eigenvectors((1, 0, 0), (0, 0.5, 0.75**0.5))
    assert relevance(diagonal(4, 2, 1), profile, k=2, measure="angles") == pytest.approx(2 / 3, abs=1e-6)


def test_directions_that_are_swapped_are_at_right_angles() -> None:
    assert relevance(diagonal(4, 1), eigenvectors((0, 1), (1, 0)), k=2, measure="angles") == 0.0


def test_the_sign_of_a_direction_does_not_matter() -> None:
    assert relevance(diagonal(4, 1), eigenvectors((-1, 0), (0, -1)), k=2, measure="angles") == 1.0


def test_swapped_directions_share_all_of_their_energy() -> None:
    # the paper's relevance of axes 4 and 1 swapped is 1/4; the subspaces are the same: √(1/4 · 1)
    assert relevance(diagonal(4, 1), eigenvectors((0, 1), (1, 0)), k=2, measure="subspace") == pytest.approx(0.5)


def test_half_of_the_energy_is_shared_where_one_of_two_directions_is() -> None:
    # axes 1 and 3 against axes 1 and 2 of eigenvalues 4, 1, ¼: ratios 1 and ¼, so ½; energy ½
    profile = eigenvectors((1, 0, 0), (0, 0, 1))
    assert relevance(diagonal(4, 1, 0.25), profile, k=2, measure="subspace") == pytest.approx(0.5)


def test_energy_is_that_of_the_principal_angles() -> None:
    rng = np.random.default_rng(1)
    one, other = (spectrum_of(rng.normal(size=(30, 12))) for _ in range(2))
    geometric, found = (relevance(one, other.profile(4), k=4, measure=m) for m in ("geometric", "subspace"))
    angles = subspace_angles(one.eigenvectors[:4].T, other.eigenvectors[:4].T)
    assert found**2 == pytest.approx(geometric * np.mean(np.cos(angles) ** 2), rel=1e-5)


def test_negligible_directions_of_the_measuring_device_count_for_no_measure() -> None:
    spectrum, profile = diagonal(1, 0.5, 1e-12), eigenvectors((1, 0, 0), (0, 1, 0), (0, 0, 1))
    lost = eigenvectors((1, 0, 0), (0, 1, 0), (0, 0.5, 0.75**0.5))
    for measure in ("angles", "subspace"):
        found = [relevance(spectrum, each, k=3, measure=measure) for each in (profile, lost)]  # type: ignore[arg-type]
        assert found == [1.0, 1.0]


@given(
    seed=st.integers(0, 2**32),
    examples=st.integers(1, 12),
    rank=st.integers(1, 5),
    k=st.integers(1, 6),
    measure=st.sampled_from(["geometric", "angles", "subspace"]),
)
def test_every_measure_gives_a_number_from_0_to_1_and_one_to_itself(
    seed: int, examples: int, rank: int, k: int, measure: Measure
) -> None:
    one, other = spectrum_of(data(seed, examples, 5, rank)), spectrum_of(data(seed + 1, 6, 5))
    assert 0.0 <= relevance(one, other.profile(k), k=k, measure=measure) <= 1.0
    assert relevance(one, one.profile(k), k=k, measure=measure) == pytest.approx(1.0, abs=1e-3)


def test_a_measure_that_there_is_not_is_refused() -> None:
    text = (
        "{name: x, partition: {kind: iid, devices: 2, examples_per_device: 5}, method: {name: one_shot, measure: dot}}"
    )
    with pytest.raises(ExperimentError, match=r"method\.measure: must be 'geometric', 'angles' or 'subspace'"):
        parse_experiment(text)
