"""Sketches: short vectors that replace long vectors. Inner products of sketches approximate inner products of the long
vectors. So norms, cosines and distances are, too.

In a count sketch (Charikar et al. 2002), every coordinate of the vector is added, with a random sign, to a random
coordinate of the sketch. The sketch is linear and unbiased. For vectors u and v, the standard deviation of the sketched
⟨u, v⟩ is at most ‖u‖ ‖v‖ √(2 / length). All devices draw the same signs and coordinates from the experiment's seed. A
sketch is no protection: it may reveal much about its vector.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import PayloadError
from fedstrata.tensors.layout import Flat

SKETCH_ADDRESS = 0x5CE7_C4  # keeps these draws apart from every other use of the seed
LARGEST = 1e30  # of a number of a sketch: squares and sums of these are finite, and no update that a sum takes has one


def sketch_of(vector: Flat, length: int, seed: int) -> NDArray[np.float64]:
    """Return the sketch of a vector of any size, shape (length,). Only sketches of vectors of equal size, with the same
    seed, are comparable.
    """
    rng = np.random.default_rng([seed, SKETCH_ADDRESS])
    places = rng.integers(length, size=len(vector))
    signs = rng.choice(np.array([-1.0, 1.0]), size=len(vector))
    return np.bincount(places, weights=vector * signs, minlength=length).astype(np.float64)


def check_sketch(sketch: NDArray[Any], length: int) -> None:
    """Raise PayloadError if a sketch has another length than `length`, or has a number that is too large for the sketch
    of an update.
    """
    if len(sketch) != length:
        raise PayloadError(f"a sketch of {len(sketch)} numbers, expected {length}")
    if np.abs(sketch).max() > LARGEST:
        raise PayloadError(f"a sketch with numbers beyond {LARGEST:g} either way")
