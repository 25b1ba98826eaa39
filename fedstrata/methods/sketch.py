"""Sketches: short vectors in place of long ones that keep their inner products, and so norms, cosines and distances.

A count sketch (Charikar et al. 2002): every coordinate is added, with a random sign, to one of the sketch's places. It
is linear, unbiased, and for vectors u and v the standard deviation of its ⟨u, v⟩ is at most ‖u‖ ‖v‖ √(2 / length).
All devices draw signs and places by the experiment's seed; what a sketch gives away of its vector is not bounded here.
"""

import numpy as np
from numpy.typing import NDArray

from fedstrata.tensors.layout import Flat

SKETCH_ADDRESS = 0x5CE7_C4  # keeps these draws apart from every other use of the seed


def sketch_of(vector: Flat, length: int, seed: int) -> NDArray[np.float64]:
    """The sketch, shape (length,), of a vector of any size."""
    rng = np.random.default_rng([seed, SKETCH_ADDRESS])
    places = rng.integers(length, size=len(vector))
    signs = rng.choice(np.array([-1.0, 1.0]), size=len(vector))
    return np.bincount(places, weights=vector * signs, minlength=length).astype(np.float64)
