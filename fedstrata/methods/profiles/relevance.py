"""Eigen-relevance: how well the leading eigenvectors of one device explain the data of another device. Neither device
needs the data of the other.

Source: Ali & Arafa, Data Similarity-Based One-Shot Clustering for Multi-Task Hierarchical Federated Learning, Eq. 1 to
5. Everything is computed in float64, but devices send eigenvectors as float32.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import PayloadError

Matrix = NDArray[np.float64]
Measure = Literal["geometric", "angles", "subspace"]

# The product of Eq. 4 leaves out directions with an eigenvalue of at most this share of the measuring device's largest
# eigenvalue. Such directions contain no data of the device, only rounding errors.
NEGLIGIBLE_RATIO = 1e-9
ORTHONORMAL = 1e-3  # largest allowed product of two rows; rounding in float32 gives about 1e-7
LANDMARK_DRAW = 0x6C6D  # "lm": an address that only this draw uses


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Hold the spectrum of a device's data: all eigenvalues, descending, shape (r,), and eigenvectors, shape (r, d).
    The spectrum stays on the device.
    """

    eigenvalues: Matrix
    eigenvectors: Matrix

    def profile(self, k: int) -> NDArray[np.float32]:
        """Return the profile that the device sends: its leading k eigenvectors, shape (min(k, r), d)."""
        return self.eigenvectors[:k].astype(np.float32)


def spectrum_of(features: Matrix) -> Spectrum:
    """Return the spectrum of G = AᵀA / n for features A, shape (n, d) (Eq. 1). It is computed by a thin SVD of A,
    without forming G.
    """
    _, singular, vectors = np.linalg.svd(features, full_matrices=False)
    return Spectrum(eigenvalues=singular**2 / len(features), eigenvectors=vectors)


def relevance(spectrum: Spectrum, profile: NDArray[np.float32], *, k: int, measure: Measure = "geometric") -> float:
    """Return r(i, j) in [0, 1], the relevance of device j to device i. `profile` belongs to device j, shape (≤ k, d),
    and `spectrum` to device i.

    The measure `geometric` is the paper's. `angles` compares the m-th eigenvectors of both devices: it is 1 − a / 90°,
    where a is the mean angle between them. `subspace` is the geometric mean of two numbers: the paper's measure, and
    the common part of both subspaces (`_shared_part`).
    """
    depth = min(k, len(profile), len(spectrum.eigenvalues))
    own = spectrum.eigenvalues[:depth]
    kept = own > NEGLIGIBLE_RATIO * own[0]
    if not kept.any():
        return 0.0
    vectors = profile[:depth].T.astype(np.float64)
    if measure == "angles":
        return _by_angles(spectrum.eigenvectors[:depth][kept] @ vectors[:, kept])
    found = _geometric(spectrum, vectors, kept)
    if measure == "subspace":
        found = math.sqrt(found * _shared_part(spectrum.eigenvectors[:depth][kept] @ vectors))
    return found


def _geometric(spectrum: Spectrum, vectors: Matrix, kept: NDArray[np.bool_]) -> float:
    """Return the geometric mean of the ρ_m (Eq. 4) over all m in the mask `kept`, computed by logarithms. By Eq. 3, ρ_m
    = min(λ_m, λ̂_m) / max(λ_m, λ̂_m). By Eq. 2, λ̂_m = ‖G v_m‖, where v_m is the m-th column of `vectors`.

    The eigenvectors of G are orthonormal, so ‖G v‖ = ‖diag(λ) V v‖.
    """
    own = spectrum.eigenvalues[: len(kept)]
    estimated = np.linalg.norm(spectrum.eigenvalues[:, None] * (spectrum.eigenvectors @ vectors), axis=0)
    ratio = np.minimum(own, estimated)[kept] / np.maximum(own, estimated)[kept]
    with np.errstate(divide="ignore"):
        return float(np.exp(np.mean(np.log(ratio))))


def _by_angles(cosines: Matrix) -> float:
    """Return 1 − a / 90°, where a is the mean angle between the m-th directions of both devices. `cosines` has the
    cosine between each direction of one device and each direction of the other device.
    """
    angles = np.arccos(np.minimum(np.abs(np.diagonal(cosines)), 1.0))
    return float(1.0 - angles.mean() / (np.pi / 2))


def _shared_part(cosines: Matrix) -> float:
    """Return ‖V_i V_jᵀ‖² divided by the number of directions of V_i. The result is 1 if all directions of V_i lie in
    the subspace of V_j. It is 0 if all are orthogonal to this subspace.
    """
    return min(float(np.sum(cosines**2)) / len(cosines), 1.0)  # rounding of the profile can give slightly more than 1


def check_eigenvectors(vectors: NDArray[np.float32]) -> None:
    """Raise PayloadError unless the vectors (k, d) have at least one row, and all rows are finite and of length one."""
    if not len(vectors):
        raise PayloadError("the answer has no eigenvector; at least one is needed")
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    if not np.all(np.abs(lengths - 1) < 1e-3):
        raise PayloadError("eigenvectors must be finite and of length one")


def check_profile(vectors: NDArray[np.float32], expected: int) -> None:
    """Raise PayloadError unless the vectors are orthonormal and their number is `expected`. Otherwise they cannot be
    the leading eigenvectors.
    """
    check_eigenvectors(vectors)
    if len(vectors) != expected:
        raise PayloadError(f"the answer has {len(vectors)} eigenvectors; expected {expected}")
    rows = vectors.astype(np.float64)
    farthest = float(np.abs(rows @ rows.T - np.eye(len(rows))).max())
    if farthest > ORTHONORMAL:
        raise PayloadError(f"eigenvectors must be orthogonal to each other, but two have the product {farthest:.3g}")


def landmarks(devices: int, seed: int, *, exact_up_to: int, count: int) -> list[int]:
    """Return the indexes, ascending, of the landmarks. These are the devices from which every other device receives a
    profile.

    With at most `exact_up_to` devices, all devices are landmarks. With more devices, `count` landmarks are drawn
    without replacement, by the experiment's seed. Each device then receives `count` profiles, so the bytes grow with N
    and not with N².
    """
    if devices <= exact_up_to:
        return list(range(devices))
    drawn = np.random.default_rng([seed, LANDMARK_DRAW]).permutation(devices)[:count]
    return sorted(int(index) for index in drawn)


def relevance_matrix(rows: Matrix) -> Matrix:
    """Return R = (r + rᵀ) / 2 with ones on the diagonal (Eq. 5), shape (N, N). `rows` is r."""
    matrix = (rows + rows.T) / 2
    np.fill_diagonal(matrix, 1.0)
    return matrix
