"""Sketches: short vectors that replace long vectors. They approximately keep inner products, and therefore norms,
cosines and distances.

In a count sketch (Charikar et al. 2002) every coordinate is added, with a random sign, to one of the sketch's places.
The sketch is linear and unbiased. For vectors u and v the standard deviation of the sketched ⟨u, v⟩ is at most ‖u‖ ‖v‖
√(2 / length). All devices draw signs and places from the experiment's seed. There is no bound on how much a sketch
reveals about its vector.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import PayloadError
from fedstrata.tensors.layout import Flat

SKETCH_ADDRESS = 0x5CE7_C4  # keeps these draws apart from every other use of the seed
LARGEST = 1e30  # of a number of a sketch: squares and sums of these are finite, and no update that a sum takes has one


def sketch_of(vector: Flat, length: int, seed: int) -> NDArray[np.float64]:
    """Return the sketch, shape (length,), of a vector of any size. Only sketches with the same seed are comparable."""
    rng = np.random.default_rng([seed, SKETCH_ADDRESS])
    places = rng.integers(length, size=len(vector))
    signs = rng.choice(np.array([-1.0, 1.0]), size=len(vector))
    return np.bincount(places, weights=vector * signs, minlength=length).astype(np.float64)


def check_sketch(sketch: NDArray[Any], length: int) -> None:
    """Raise PayloadError for a sketch of another length, or with a number that is too large for an update."""
    if len(sketch) != length:
        raise PayloadError(f"a sketch of {len(sketch)} numbers, expected {length}")
    if np.abs(sketch).max() > LARGEST:
        raise PayloadError(f"a sketch with numbers beyond {LARGEST:g} either way")
