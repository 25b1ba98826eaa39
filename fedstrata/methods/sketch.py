"""Sketches: short vectors that replace long vectors. Inner products of sketches approximate inner products of the long
vectors. So norms, cosines and distances of sketches approximate the norms, cosines and distances of the long vectors.

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

SKETCH_ADDRESS = 0x5CE7_C4  # an address that only these draws use
LARGEST = 1e30  # largest number of a sketch: sums of squares stay finite, and real updates stay far below it


def sketch_of(vector: Flat, length: int, seed: int) -> NDArray[np.float64]:
    """Return the sketch, of shape (length,), of a vector of any size. Only sketches of vectors of equal size, with the
    same seed, are comparable.
    """
    rng = np.random.default_rng([seed, SKETCH_ADDRESS])
    places = rng.integers(length, size=len(vector))
    signs = rng.choice(np.array([-1.0, 1.0]), size=len(vector))
    return np.bincount(places, weights=vector * signs, minlength=length).astype(np.float64)


def check_sketch(sketch: NDArray[Any], what: str = "sketch") -> None:
    """Raise PayloadError if a sketch has a number that is too large for the sketch of an update. `what` is its name in
    the message.
    """
    if np.abs(sketch).max() > LARGEST:
        raise PayloadError(f"the answer has a {what} with numbers outside ±{LARGEST:g}")
