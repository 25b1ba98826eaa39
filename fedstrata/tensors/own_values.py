"""The check of vectors that the user's own code returns."""

from typing import Any

import numpy as np

from fedstrata.errors import PluginError
from fedstrata.tensors.layout import Flat


def own_vector(given: Any, size: int, wanted: str) -> Flat:
    """Check a vector that the user's own code returned, and return it as float32.

    Args:
        wanted: beginning of the message, such as "rule median: combine must return finite numbers".

    Raises:
        PluginError: the vector has another shape than (size,), or values that are not finite float32 numbers.
    """
    with np.errstate(over="ignore"):
        found = np.asarray(given).astype(np.float32)
    if found.shape != (size,) or not np.isfinite(found).all():
        raise PluginError(
            f"{wanted} of shape ({size},); it returned shape {found.shape} with "
            f"{found.size - np.isfinite(found).sum()} values that are not finite"
        )
    return found
